package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// Alike merges findings for people: the same fault of several objects of one kind becomes one finding, in the place of the
// first. It names the first few objects and their number; in Fix, the kind in capital letters replaces the name of each.
func Alike(found []Finding) (alike []Finding) {
	var kinds []Finding // of each that is returned, what it has in common with its like
	var names [][]string
	for _, f := range found {
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
			alike[i].Object = fmt.Sprintf("%d × %s %s", len(of), kinds[i].Object, some(of))
		}
	}
	return alike
}

// withoutName puts a placeholder where a text has a name as a word of its own.
func withoutName(text, name, placeholder string) string {
	words := strings.Split(text, " ")
	for i, word := range words {
		if bare := strings.TrimRight(word, ".,;:"); name != "" && bare == name {
			words[i] = placeholder + word[len(bare):]
		}
	}
	return strings.Join(words, " ")
}
