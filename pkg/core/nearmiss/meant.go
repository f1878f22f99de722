package nearmiss

import (
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// SimilarName returns the known name that is most similar to a misspelt name, or "". A name qualifies if it is at
// most two characters longer and four characters shorter than the known name, and if at most a sixth of
// its characters are missing in the known name. The most similar name has the fewest characters that
// occur in only one of the two. The chart's admission policy "names" implements the same rule in CEL.
func SimilarName(name string, known []string) (meant string) {
	least := -1
	for _, k := range known {
		foreign := missingIn(k, name)
		distance := foreign + missingIn(name, k)
		if len(name) <= len(k)+2 && len(name)+4 >= len(k) && foreign*6 <= len(name) && (least < 0 || distance < least) {
			meant, least = k, distance
		}
	}
	return meant
}

// missingIn returns the number of characters of s that the other string lacks.
func missingIn(other, s string) (n int) {
	for _, c := range s {
		if !strings.ContainsRune(other, c) {
			n++
		}
	}
	return n
}

// MeantModel returns a glob for the part of a model's name that the request's first glob misspells, or "". The part has
// the digits of that first glob: an A10 is no misspelt A100.
func MeantModel(v placement.Verdict) string {
	first, _, _ := strings.Cut(string(v.Request.Models), ",")
	glob := strings.Trim(strings.ToLower(first), "*")
	if strings.ContainsAny(glob, "!*?[") {
		return ""
	}
	number := digits(glob)
	var parts, known []string
	for i, d := range v.Node.Devices {
		if i > 0 && d.Model == v.Node.Devices[i-1].Model {
			continue
		}
		name := strings.ReplaceAll(d.Model, " ", "-")
		for from := range name {
			for to := from + 1; to <= len(name); to++ {
				if part := name[from:to]; isWord(name, from, to) && digits(part) == number {
					parts, known = append(parts, part), append(known, strings.ToLower(part))
				}
			}
		}
	}
	at := slices.Index(known, SimilarName(glob, known))
	if at < 0 || known[at] == glob {
		return ""
	}
	return "*" + parts[at] + "*"
}

// isWord reports whether a part of a name begins at the name's start or after a hyphen, and ends at the
// name's end or before a hyphen.
func isWord(name string, from, to int) bool {
	return (from == 0 || name[from-1] == '-') && (to == len(name) || name[to] == '-')
}

func digits(s string) string {
	return strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return -1
		}
		return r
	}, s)
}
