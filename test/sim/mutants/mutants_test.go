package main

import (
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every patch applies to the source of today, and its test exists.
func TestPatches(t *testing.T) {
	t.Chdir("..")
	known, err := readPatches(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if len(known) < 100 {
		t.Errorf("%d patches, want more than 100", len(known))
	}
	for _, m := range known {
		if _, err := parser.ParseFile(token.NewFileSet(), m.file, m.content, 0); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if m.test != "" && exec.Command("grep", "-rqs", "--include=*_test.go", `func `+m.test+`(t \*testing.T)`, filepath.Join(root, m.dir)).Run() != nil {
			t.Errorf("%s: there is no %s in %s", m.name, m.test, m.dir)
		}
	}
}

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
	return n, nil
}
`
	want := []string{
		" f: c.mu.Lock() defer c.mu.Unlock() => ",
		" f: if err := g(); err != nil { => if err := g(); false && err != nil {",
		" f: if a < b && x != nil { => if a < b || x != nil {",
		" f: if a < b && x != nil { => if a <= b && x != nil {",
		" f: if a < b && x != nil { => if a < b && x == nil {",
		" f: n = a => ",
		" f: h() => ",
		" f: m := cmp.Compare(a, b) => m := cmp.Compare(b, a)",
	}
	found, err := sitesOf("p.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range found {
		got = append(got, m.name[len("p.go"):])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sites (-want +got):\n%s", diff)
	}
}

// Each equivalent mutant can still be generated.
func TestEquivalents(t *testing.T) {
	t.Chdir("..")
	all, err := sites(t.Context(), []string{"./pkg/core/..."})
	if err != nil {
		t.Fatal(err)
	}
	possible := make(map[string]bool)
	for _, m := range all {
		possible[m.name] = true
	}
	for name := range equivalent {
		if !possible[name] {
			t.Errorf("the generator has no mutant %q", name)
		}
	}
}
