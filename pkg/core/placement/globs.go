package placement

import (
	"path"
	"strings"
)

// Glob is one glob of a list, ready to be matched. The form is path.Match's; one that is malformed
// matches nothing. Case does not count, and a space is as good as a dash, which labels have in its place.
type Glob struct {
	Text string // as it is written

	pattern  string // folded, without the "!"
	excludes bool
}

func newGlob(text string) Glob {
	pattern, excludes := strings.CutPrefix(fold(text), "!")
	return Glob{Text: text, pattern: pattern, excludes: excludes}
}

// Globs say which names pass. Two that are written alike are equal (==); the zero value is none.
type Globs struct{ list list[Glob] }

// NewGlobs returns a list of globs; a "!" before one excludes.
func NewGlobs(texts ...string) Globs {
	all := make([]Glob, len(texts))
	for i, text := range texts {
		all[i] = newGlob(text)
	}
	return Globs{newList(all)}
}

func (g Glob) String() string { return g.Text }

// Empty reports whether there is none: then all names pass.
func (g Globs) Empty() bool { return g.list.empty() }

// Texts returns the globs as they are written.
func (g Globs) Texts() []string {
	out := make([]string, 0, g.list.len())
	for l := g.list; !l.empty(); l = l.tail() {
		out = append(out, l.head().Text)
	}
	return out
}

func (g Globs) String() string { return strings.Join(g.Texts(), ",") }

// Equal reports whether two lists are written alike. It is there for who compares by reflection.
func (g Globs) Equal(o Globs) bool { return g == o }

// Match reports whether something passes under one of its names: at least one of the globs
// that do not exclude matches (when there are any), and none of those that do.
func (g Globs) Match(names ...string) bool {
	if g.Empty() {
		return true
	}
	return g.match(folded(names...))
}

func (g Globs) match(names []string) bool {
	wanted, matched := false, false
	for l := g.list; !l.empty(); l = l.tail() {
		switch one := l.head(); {
		case !one.excludes:
			wanted = true
			matched = matched || one.matches(names)
		case one.matches(names):
			return false
		}
	}
	return matched || !wanted
}

// MatchModel is Match for a model, which counts without the names in front of it too: "A100*"
// matches "NVIDIA A100-SXM4-80GB", and "T4*" matches "Tesla T4".
func (g Globs) MatchModel(model string) bool {
	return g.Empty() || g.match(namesOfModel(model))
}

// namesOfModel returns the names of a model, folded: all of it, and without NVIDIA and Tesla.
func namesOfModel(model string) []string {
	whole := fold(model)
	product := strings.TrimPrefix(whole, "nvidia-")
	return []string{whole, product, strings.TrimPrefix(product, "tesla-")}
}

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
