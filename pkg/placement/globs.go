package placement

import (
	"path"
	"slices"
	"strings"
)

// Glob is one glob of a list, ready to be matched. The form is path.Match's; one that is malformed
// matches nothing. Case does not count, and a space is as good as a dash, which labels have in its place.
type Glob struct {
	Text string // as it is written

	pattern  string // folded, without the "!"
	excludes bool
}

// Globs say which names pass.
type Globs []Glob

// NewGlobs returns a list of globs; a "!" before one excludes.
func NewGlobs(texts ...string) Globs {
	var out Globs
	for _, text := range texts {
		pattern, excludes := strings.CutPrefix(fold(text), "!")
		out = append(out, Glob{Text: text, pattern: pattern, excludes: excludes})
	}
	return out
}

func (g Glob) String() string { return g.Text }

// Texts returns the globs as they are written.
func (g Globs) Texts() []string {
	out := make([]string, len(g))
	for i := range g {
		out[i] = g[i].Text
	}
	return out
}

func (g Globs) String() string { return strings.Join(g.Texts(), ",") }

// Equal reports whether two lists are written alike.
func (g Globs) Equal(o Globs) bool { return slices.Equal(g, o) }

// Match reports whether something passes under one of its names: at least one of the globs
// that do not exclude matches (when there are any), and none of those that do.
func (g Globs) Match(names ...string) bool {
	if len(g) == 0 {
		return true
	}
	return g.match(folded(names...))
}

func (g Globs) match(names []string) bool {
	wanted, matched := false, false
	for i := range g {
		switch {
		case !g[i].excludes:
			wanted = true
			matched = matched || g[i].matches(names)
		case g[i].matches(names):
			return false
		}
	}
	return matched || !wanted
}

// exclude reports whether one of the globs with "!" matches one of some folded names.
func (g Globs) exclude(names []string) bool {
	return slices.ContainsFunc(g, func(one Glob) bool { return one.excludes && one.matches(names) })
}

// MatchModel is Match for a model, which counts without the maker's name too: "A100*" matches
// "NVIDIA A100-SXM4-80GB".
func (g Globs) MatchModel(model string) bool {
	return len(g) == 0 || g.match(namesOfModel(model))
}

func namesOfModel(model string) []string { return folded(model, strings.TrimPrefix(model, "NVIDIA ")) }

// MatchModel matches a model against globs that are used once.
func MatchModel(globs []string, model string) bool { return NewGlobs(globs...).MatchModel(model) }

// matches reports whether the pattern is that of one of some folded names.
func (g Glob) matches(names []string) bool {
	for _, name := range names {
		if ok, err := path.Match(g.pattern, name); ok && err == nil {
			return true
		}
	}
	return false
}

func folded(names ...string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = fold(name)
	}
	return out
}

func fold(s string) string { return strings.ReplaceAll(strings.ToLower(s), " ", "-") }
