package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The table must not rot: each text is in its file exactly once, and each test is there.
func TestTable(t *testing.T) {
	t.Chdir("..")
	for _, m := range table {
		path, _, err := m.mutate()
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if m.test != simulation && !there(t, filepath.Dir(path), m.test) {
			t.Errorf("%s: there is no %s in the package", m.name, m.test)
		}
	}
}

// there reports whether a test is among those of a package.
func there(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(content, []byte("func "+test+"(t *testing.T)")) {
			return true
		}
	}
	return false
}
