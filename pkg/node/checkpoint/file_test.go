package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// WriteFile replaces the old content completely, and leaves no incomplete file.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "state.json")
	for _, what := range []map[string]int{{"a": 1, "b": 2}, {"c": 3}} {
		if err := WriteJSON(file, what, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != `{"c":3}` {
		t.Errorf("the file has %s, %v", data, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if names := namesIn(t, dir); !slices.Equal(names, []string{"state.json"}) {
		t.Errorf("the folder has %v", names)
	}
}

// A failed write leaves the file unchanged.
func TestWriteFileThatFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "state.json")
	if err := WriteFile(file, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file+halfSuffix, 0o755); err != nil { // blocks the incomplete file
		t.Fatal(err)
	}
	if err := WriteFile(file, []byte("after"), 0o644); err == nil {
		t.Error("no error")
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "before" {
		t.Errorf("the file has %s, %v", data, err)
	}
	if err := WriteFile(filepath.Join(dir, "none", "state.json"), nil, 0o644); err == nil {
		t.Error("no error without a folder")
	}
	if err := WriteFile(dir, nil, 0o644); err == nil {
		t.Error("no error for a file that would replace a folder")
	}
	if err := WriteJSON(file, func() {}, 0o644); err == nil {
		t.Error("no error for what is no JSON")
	}
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := fs.ReadDir(os.DirFS(dir), ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A full disk leaves the file unchanged.
func TestWriteFileOnAFullDisk(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	if err := errors.Join(WriteFile(file, []byte("before"), 0o644), os.Symlink("/dev/full", file+halfSuffix)); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(file, []byte("after"), 0o644); err == nil {
		t.Error("no error")
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "before" {
		t.Errorf("the file has %q, %v", data, err)
	}
}
