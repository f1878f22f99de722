package placement

import (
	"path"
	"slices"
	"strings"
)

// Globs say which names pass: globs with commas between them, as people write them; a "!" before
// one excludes. Their form is path.Match's; one that is malformed matches nothing. Case does not
// count, and a space is as good as a dash, which labels have in its place. Empty, all names pass.
type Globs string

// NewGlobs returns a list of globs; none has a comma.
func NewGlobs(texts ...string) Globs { return Globs(strings.Join(texts, ",")) }

// Texts returns the globs as they are written.
func (g Globs) Texts() []string {
	if g == "" {
		return nil
	}
	return strings.Split(string(g), ",")
}

// Match reports whether something passes under one of its names: at least one of the globs
// that do not exclude matches (when there are any), and none of those that do.
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

// MatchModel is Match for a model, which counts without the names in front of it too: "A100*"
// matches "NVIDIA A100-SXM4-80GB", and "T4*" matches "Tesla T4".
func (g Globs) MatchModel(model string) bool {
	return g == "" || g.Match(model, strings.TrimPrefix(fold(model), "nvidia-"),
		strings.TrimPrefix(strings.TrimPrefix(fold(model), "nvidia-"), "tesla-"))
}

// ValidGlob reports whether a glob, without the "!", has a form that may match something.
func ValidGlob(s string) bool {
	_, err := path.Match(fold(s), "")
	return err == nil && s != ""
}

func fold(s string) string { return strings.ReplaceAll(strings.ToLower(s), " ", "-") }
