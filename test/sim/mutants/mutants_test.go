package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every patch applies to the source of today, compiles, and its test exists.
func TestPatches(t *testing.T) {
	t.Chdir("..")
	known, err := readPatches(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if len(known) < 100 {
		t.Errorf("%d patches, want more than 100", len(known))
	}
	packages := compiled(t)
	for _, m := range known {
		if err := packages.check(m); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if m.test != "" && exec.Command("grep", "-rqs", "--include=*_test.go", `func `+m.test+`(t \*testing.T)`, filepath.Join(root, m.dir)).Run() != nil {
			t.Errorf("%s: there is no %s in %s", m.name, m.test, m.dir)
		}
	}
}

// sources contains the compiled packages of the root module and of the simulation.
type sources struct {
	files  map[string][]string // by directory
	export map[string]string   // export data by import path
}

// compiled compiles the packages that patches can change, or finds them in Go's cache. It runs in test/sim.
func compiled(t *testing.T) sources {
	t.Helper()
	out := sources{make(map[string][]string), make(map[string]string)}
	for dir, pattern := range map[string]string{root: "./pkg/...", ".": "."} {
		list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", `{{.ImportPath}} {{.Dir}} {{.Export}}{{range .GoFiles}} {{.}}{{end}}`, pattern)
		list.Dir, list.Stderr = dir, os.Stderr
		text, err := list.Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 2 {
				out.files[fields[1]], out.export[fields[0]] = fields[3:], fields[2]
			}
		}
	}
	return out
}

// check reports whether the package of a fault compiles.
func (s sources) check(m mutant) error {
	path, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		return err
	}
	dir, changed := filepath.Split(path)
	names, set := s.files[filepath.Clean(dir)], token.NewFileSet()
	if len(names) == 0 {
		return fmt.Errorf("no package in %s", dir)
	}
	var files []*ast.File
	for _, name := range names {
		var content any
		if name == changed {
			content = m.content
		}
		file, err := parser.ParseFile(set, filepath.Join(dir, name), content, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	lookup := func(path string) (io.ReadCloser, error) { return os.Open(s.export[path]) }
	_, err = (&types.Config{Importer: importer.ForCompiler(set, "gc", lookup)}).Check(dir, set, files, nil)
	return err
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
