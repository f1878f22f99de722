package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// Alike merges findings for people. Several objects of one kind with the same fault become one finding,
// at the place of the first. The field Object of this finding has the number of objects and the first few
// names. In its field Fix, the kind in capital letters replaces each name.
func Alike(result []Finding) (alike []Finding) {
	var kinds []Finding // the common part of the merged findings, for each returned finding
	var names [][]string
	for _, f := range result {
		object, name, _ := strings.Cut(f.Object, " ")
		kind := Finding{f.Check, f.Severity, object, f.Wrong, withoutName(f.Fix, name, strings.ToUpper(object))}
		at := slices.Index(kinds, kind)
		if at < 0 || name == "" {
			alike, kinds, names = append(alike, f), append(kinds, kind), append(names, []string{name})
			continue
		}
		names[at] = append(names[at], name)
	}
	for i, of := range names {
		if len(of) > 1 {
			alike[i] = kinds[i]
			alike[i].Object = fmt.Sprintf("%d × %s %s", len(of), kinds[i].Object, abbreviateNames(of))
		}
	}
	return alike
}

// withoutName replaces a name in a text by a placeholder, wherever the name is a word.
func withoutName(text, name, placeholder string) string {
	words := strings.Split(text, " ")
	for i, word := range words {
		if bare := strings.TrimRight(word, ".,;:"); name != "" && bare == name {
			words[i] = placeholder + word[len(bare):]
		}
	}
	return strings.Join(words, " ")
}
