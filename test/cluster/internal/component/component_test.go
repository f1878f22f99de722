package component

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuild makes the one component that needs no other module, twice, and
// again after a change.
func TestBuild(t *testing.T) {
	sources := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		file := filepath.Join(sources, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.test\n\ngo 1.26\n")
	write("images/pause/main.go", "package main\n\nfunc main() {}\n")
	write("images/sample/main.go", "package main\n\nfunc main() {}\n")
	var log bytes.Buffer
	b := Builder{Sources: sources, Cache: t.TempDir(), Log: &log}

	first, err := b.Build(t.Context(), Guest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(first.Program(Guest, "sample")); err != nil {
		t.Error(err)
	}
	log.Reset()
	again, err := b.Build(t.Context(), Guest)
	if err != nil {
		t.Fatal(err)
	}
	if again[Guest] != first[Guest] || log.Len() > 0 {
		t.Errorf("the second build went to %s, not %s, and said %q", again[Guest], first[Guest], log.String())
	}

	write("images/sample/main.go", "package main\n\nfunc main() { println() }\n")
	changed, err := b.Build(t.Context(), Guest)
	if err != nil {
		t.Fatal(err)
	}
	if changed[Guest] == first[Guest] {
		t.Error("changed sources have the old result")
	}

	write("images/sample/main.go", "package main\n\nfunc main() { undefined() }\n")
	if _, err := b.Build(t.Context(), Guest); err == nil || !strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("a build that fails says %v", err)
	}
	left, err := filepath.Glob(filepath.Join(b.Cache, "components", Guest, ".building-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("unfinished builds are left: %v, %v", left, err)
	}
	if b.Available(FakeNVML) {
		t.Error("a component without sources is available")
	}
}
