package test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

const (
	repository = "github.com/gpumem/gpumem/"
	maxModules = 8 // below this folder, this one among them
)

// importsBelow returns the Go files below a folder, each with what it imports.
func importsBelow(t *testing.T, root string) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		found[path] = nil
		for _, spec := range file.Imports {
			found[path] = append(found[path], strings.Trim(spec.Path.Value, `"`))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Arrows between the folders of pkg point one way. Those within pkg/core and pkg/cli have tests
// there.
func TestWhatTheFoldersOfPkgImport(t *testing.T) {
	allowed := map[string][]string{
		"core":      nil,
		"process":   nil,
		"kube":      {"core"},
		"node":      {"core", "kube", "process"},
		"report":    {"core", "kube"},
		"scheduler": {"core", "kube", "process", "report"},
		"cli":       {"core", "kube", "report"},
	}
	// The metrics of the device plugin have what it measures of a container.
	except := map[string]string{"report/metrics": "node/usage"}
	// The device plugin and the driver of claims are put together from their parts, and the fakes import no part.
	apart := map[string][]string{
		"node/render":     {"node/claims", "node/deviceplugin"},
		"node/grants":     {"node/claims", "node/render", "node/deviceplugin"},
		"node/plugintest": {"node/claims", "node/render", "node/deviceplugin", "node/grants"},
	}
	seen := make(map[string]bool)
	for path, imports := range importsBelow(t, "../pkg") {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		from := strings.TrimPrefix(filepath.Dir(path), "../pkg/")
		folder, _, _ := strings.Cut(from, "/")
		may, known := allowed[folder]
		seen[from] = true
		if seen[folder] = true; !known {
			t.Errorf("%s: the folder is new: say what it may import", path)
		}
		for _, imported := range imports {
			to, ours := strings.CutPrefix(imported, repository+"pkg/")
			there, _, _ := strings.Cut(to, "/")
			if ours && (there != folder && !slices.Contains(may, there) && except[from] != to || slices.Contains(apart[from], to)) {
				t.Errorf("%s imports %s", path, to)
			}
		}
	}
	for _, folder := range slices.Concat(slices.Collect(maps.Keys(allowed)), slices.Collect(maps.Keys(apart))) {
		if !seen[folder] {
			t.Errorf("there is no folder %s", folder)
		}
	}
}

// Few folders here link the product. The others see it from outside, as its users do.
func TestWhichTestsLinkTheProduct(t *testing.T) {
	linking := []string{"packing", "page", "scheduler", "sim"}
	seen := make(map[string]bool)
	for path, imports := range importsBelow(t, ".") {
		from, _, _ := strings.Cut(path, "/")
		for _, imported := range imports {
			to, ours := strings.CutPrefix(imported, repository)
			here, isTest := strings.CutPrefix(to, "test/")
			folder, _, _ := strings.Cut(here, "/")
			if !ours || isTest && !slices.Contains(linking, folder) {
				continue
			}
			if seen[from] = true; !slices.Contains(linking, from) {
				t.Errorf("%s imports %s", path, imported)
			}
		}
	}
	for _, folder := range linking {
		if !seen[folder] {
			t.Errorf("%s links nothing of the product: take it from those that may", folder)
		}
	}
}

// What links the product here links the versions that the product has of its libraries.
func TestVersionsOfTheProduct(t *testing.T) {
	product, tests := versions(t, "../go.mod"), versions(t, "go.mod")
	common := 0
	for library, version := range product {
		here, ok := tests[library]
		if !ok {
			continue
		}
		if common++; here != version {
			t.Errorf("%s is %s, that of the product %s", library, here, version)
		}
	}
	if common < 50 {
		t.Errorf("%d libraries of the product are here, want most", common)
	}
}

// versions returns the version of each module that a go.mod requires.
func versions(t *testing.T, name string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	file, err := modfile.Parse(name, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string)
	for _, r := range file.Require {
		found[r.Mod.Path] = r.Mod.Version
	}
	return found
}

// A module has versions of its own to keep. One more is for what does not build with the versions
// of another, or would be built again with each change of it.
func TestModulesAreFew(t *testing.T) {
	var modules []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "go.mod" {
			modules = append(modules, filepath.Dir(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(modules) > maxModules {
		t.Errorf("%d modules, want %d at most: %s", len(modules), maxModules, strings.Join(modules, " "))
	}
}
