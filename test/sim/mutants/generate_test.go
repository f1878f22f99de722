package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSitesOf(t *testing.T) {
	const source = `package p

func f(a, b int) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := g(); err != nil {
		return 0, err
	}
	if a < b && x != nil {
		n = a
		h()
	}
	m := cmp.Compare(a, b)
	n = m
	b = n
	a = 1 // nothing to the one before
	return n, nil
}
`
	want := []string{
		"lock f: c.mu.Lock() defer c.mu.Unlock() => ",
		"order f: n = m b = n => b = n; n = m",
		"error f: if err := g(); err != nil { => if err := g(); false && err != nil {",
		"comparison f: if a < b && x != nil { => if a < b || x != nil {",
		"comparison f: if a < b && x != nil { => if a <= b && x != nil {",
		"comparison f: if a < b && x != nil { => if a < b && x == nil {",
		"order f: n = a h() => h(); n = a",
		"order f: m := cmp.Compare(a, b) => m := cmp.Compare(b, a)",
	}
	found, err := sitesOf("p.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range found {
		got = append(got, s.kind+s.String()[len("p.go"):])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sites (-want +got):\n%s", diff)
	}
}

func TestDraw(t *testing.T) {
	var all []site
	for i := range 9 {
		all = append(all, site{kind: comparison, line: i})
	}
	all = append(all, site{kind: lock, line: 9}, site{kind: order, line: 10})
	names := func(sites []site) (out []string) {
		for _, s := range sites {
			out = append(out, fmt.Sprint(s.kind, s.line))
		}
		return out
	}
	got := draw(all, 1)
	if len(got) != len(all) || got[1].kind != lock || got[2].kind != order {
		t.Errorf("drawn %v: want one of each kind first, and all", names(got))
	}
	if diff := cmp.Diff(names(got), names(draw(all, 1))); diff != "" {
		t.Errorf("the same seed draws another order (-first +second):\n%s", diff)
	}
	if cmp.Equal(names(got), names(draw(all, 2))) {
		t.Error("another seed draws the same order")
	}
}

// What is judged must not rot: each mutant is one that can be generated.
func TestEquivalents(t *testing.T) {
	all, err := sites(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	there := make(map[string]bool)
	for _, s := range all {
		there[s.String()] = true
	}
	for name, reason := range equivalent {
		if !there[name] || reason == "" {
			t.Errorf("%q (%s) is no mutant of the core, or has no reason", name, reason)
		}
	}
	if len(all) < 500 {
		t.Errorf("%d mutants of the core, want hundreds", len(all))
	}
}
