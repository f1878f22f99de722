package api

import "strings"

// Meant returns the known name that a misspelt name resembles most, or "". A name resembles another if it is at most two
// characters longer and four characters shorter, and if at most a sixth of its characters are missing in the other. The most
// similar name has the fewest characters that the other lacks, counted in both directions.
// The rule is simple because the chart's admission policy "names" has the same one in CEL.
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

// lacks returns how many characters of one string another lacks.
func lacks(other, s string) (n int) {
	for _, c := range s {
		if !strings.ContainsRune(other, c) {
			n++
		}
	}
	return n
}

// MeantAnnotation returns the annotation that users write and a misspelt one resembles, or "".
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
