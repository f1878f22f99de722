package deviceplugin

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The parts of the plugin are put together here and nowhere else: none of them imports another,
// nor do the fakes, so that each can be tested with them.
func TestThePartsDoNotImportOneAnother(t *testing.T) {
	parts := []string{"nodestate", "reconcile", "containers", "deviceplugin"}
	for _, name := range []string{"nodestate", "reconcile", "containers", "plugintest"} {
		files, err := filepath.Glob(filepath.Join("..", name, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files of package %s: %v", name, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range parsed.Imports {
				path, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), "github.com/gpumem/gpumem/pkg/")
				if ours && slices.Contains(parts, path) {
					t.Errorf("%s imports %s", file, path)
				}
			}
		}
	}
}
