package test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Arrows between the folders of pkg point one way. Those within pkg/core and pkg/cli have tests
// there.
func TestWhatTheFoldersOfPkgImport(t *testing.T) {
	const pkg = "github.com/gpumem/gpumem/pkg/"
	allowed := map[string][]string{
		"core":      nil,
		"process":   nil,
		"kube":      {"core"},
		"replay":    {"core"},
		"node":      {"core", "kube", "process"},
		"report":    {"core", "kube"},
		"scheduler": {"core", "kube", "process", "report"},
		"cli":       {"core", "kube", "report", "replay"},
	}
	// The metrics of the device plugin have what it measures of a container.
	except := map[string]string{"report/metrics": "node/usage"}
	seen := make(map[string]bool)
	err := filepath.WalkDir("../pkg", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		from, err := filepath.Rel("../pkg", filepath.Dir(path))
		if err != nil {
			return err
		}
		folder, _, _ := strings.Cut(from, "/")
		may, known := allowed[folder]
		if seen[folder] = true; !known {
			t.Errorf("%s: the folder is new: say what it may import", path)
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			to, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), pkg)
			there, _, _ := strings.Cut(to, "/")
			if ours && there != folder && !slices.Contains(may, there) && except[from] != to {
				t.Errorf("%s imports %s", path, to)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder := range allowed {
		if !seen[folder] {
			t.Errorf("there is no folder %s", folder)
		}
	}
}
