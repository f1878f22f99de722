// Package tabletest compares files of the repository with the Go tables that generate them. With the flag
// -update it writes the files instead. Only tests import it.
package tabletest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Update is the flag -update.
var Update = flag.Bool("update", false, "write the files that are made of Go tables")

// Between compares a generated part of a page with want. The part is between a comment that names its
// source and an end comment. Parameters name and source are paths in the repository.
func Between(t *testing.T, name, source, want string) {
	t.Helper()
	begin, end := "<!-- What follows is "+Made(source)+" -->\n", "<!-- The end of it. -->\n"
	text := Read(t, name)
	before, rest, begins := strings.Cut(text, begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s has no place for a table between %q and %q", name, begin, end)
	}
	Whole(t, name, before+begin+want+end+after)
}

// Whole compares a whole file.
func Whole(t *testing.T, name, want string) {
	t.Helper()
	if *Update {
		if err := os.WriteFile(path(t, name), []byte(want), 0o644); err != nil {
			t.Error(err)
		}
	} else if diff := cmp.Diff(want, Read(t, name)); diff != "" {
		t.Errorf("%s is stale: make update (-made +there):\n%s", name, diff)
	}
}

// Made returns the marker in files that are generated from a source.
func Made(source string) string { return "made of " + source + ": make update" }

// Read returns a file of the repository.
func Read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(path(t, name))
	if err != nil && !*Update {
		t.Fatal(err)
	}
	return string(text)
}

// path returns the path of a repository file, relative to the directory of any package's test.
func path(t *testing.T, name string) string {
	t.Helper()
	dir := "."
	for range 6 {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, name)
		}
		dir = filepath.Join(dir, "..")
	}
	t.Fatal("no go.mod above")
	return ""
}
