package placement

import (
	"path"
	"slices"
	"strings"
)

// Globs is a comma-separated list of patterns for names, in the syntax of path.Match. A leading "!"
// excludes the names that match. A malformed pattern matches nothing. Case is ignored, and a space
// equals a dash, because labels cannot contain spaces. The empty list matches all names.
type Globs string

// NewGlobs joins patterns. A pattern must not contain a comma.
func NewGlobs(texts ...string) Globs { return Globs(strings.Join(texts, ",")) }

// Texts returns the patterns as written.
func (g Globs) Texts() []string {
	if g == "" {
		return nil
	}
	return strings.Split(string(g), ",")
}

// Match reports whether the list accepts an object with the given names. No pattern with "!" may match
// a name. If the list has patterns without "!", one of them must match a name.
func (g Globs) Match(names ...string) bool {
	if g == "" {
		return true
	}
	wanted, matched := false, false
	for glob := range strings.SplitSeq(fold(string(g)), ",") {
		pattern, excludes := strings.CutPrefix(glob, "!")
		hit := slices.ContainsFunc(names, func(name string) bool { ok, _ := path.Match(pattern, fold(name)); return ok })
		if excludes && hit {
			return false
		}
		wanted, matched = wanted || !excludes, matched || hit
	}
	return matched || !wanted
}

// MatchModel is Match for a model, with and without the brand in front: "A100*" matches
// "NVIDIA A100-SXM4-80GB", and "T4*" matches "Tesla T4".
func (g Globs) MatchModel(model string) bool {
	return g == "" || g.Match(model, strings.TrimPrefix(fold(model), "nvidia-"),
		strings.TrimPrefix(strings.TrimPrefix(fold(model), "nvidia-"), "tesla-"))
}

// ValidGlob reports whether the syntax of a pattern, without the "!", is valid.
func ValidGlob(s string) bool {
	_, err := path.Match(fold(s), "")
	return err == nil && s != ""
}

func fold(s string) string { return strings.ReplaceAll(strings.ToLower(s), " ", "-") }
