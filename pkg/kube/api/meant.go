package api

import "strings"

// Meant returns the known name that is most similar to a misspelt name, or "". A name qualifies if it is at
// most two characters longer and four characters shorter than the known name, and if at most a sixth of
// its characters are missing in the known name. The most similar name has the fewest characters that
// occur in only one of the two. The chart's admission policy "names" implements the same rule in CEL.
func Meant(name string, known []string) (meant string) {
	least := -1
	for _, k := range known {
		foreign := lacks(k, name)
		distance := foreign + lacks(name, k)
		if len(name) <= len(k)+2 && len(name)+4 >= len(k) && foreign*6 <= len(name) && (least < 0 || distance < least) {
			meant, least = k, distance
		}
	}
	return meant
}

// lacks counts the characters of s that do not occur in other.
func lacks(other, s string) (n int) {
	for _, c := range s {
		if !strings.ContainsRune(other, c) {
			n++
		}
	}
	return n
}

// MeantAnnotation returns the annotation for users that is most similar to a misspelt one, or "".
func (n Names) MeantAnnotation(key string) string {
	var known []string
	for _, a := range annotations {
		if a.writer == byUsers {
			known = append(known, a.name)
		}
	}
	if name := Meant(strings.TrimPrefix(key, n.domain+"/"), known); name != "" {
		return n.key(name)
	}
	return ""
}
