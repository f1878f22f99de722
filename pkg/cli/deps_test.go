package cli_test

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Imports between the packages of the command line point in one direction.
func TestWhatCommandsImport(t *testing.T) {
	const cli = `"github.com/gpumem/gpumem/pkg/cli`
	command, list := []string{"cluster", "cmdutil"}, []string{"cluster", "cmdutil", "listing"}
	allowed := map[string][]string{
		"cluster": {}, "cmdutil": {"cluster"}, "listing": command, "clitest": {},
		"overview": list, "lists": list, "explain": command, "fit": list, "cordon": command,
		"drain": append(command, "cordon"), "defrag": append(command, "cordon"), "doctor": command,
		"clirun": {"", "cmdutil"},
	}
	files, err := filepath.Glob("*/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		name := filepath.Dir(file)
		may, known := allowed[name]
		if !known {
			t.Errorf("package %s is new: say what it may import", name)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			path, ours := strings.CutPrefix(strings.TrimSuffix(spec.Path.Value, `"`), cli)
			if ours && !slices.Contains(may, strings.TrimPrefix(path, "/")) {
				t.Errorf("%s imports %s", file, spec.Path.Value)
			}
		}
	}
}
