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
		if _, _, err := m.mutate(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if dir, name := m.unitTest(); m.test != simulation && !there(t, filepath.Join("..", "..", dir), name) {
			t.Errorf("%s: there is no %s in %s", m.name, name, dir)
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
