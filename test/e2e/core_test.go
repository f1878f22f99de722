package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// A test that was renamed would leave the core without a word.
func TestCoreNamesTests(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	missing := slices.Clone(core)
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), entry.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				missing = slices.DeleteFunc(missing, func(name string) bool { return name == f.Name.Name })
			}
		}
	}
	if len(missing) > 0 {
		t.Errorf("the core names tests that do not exist: %s", missing)
	}
}
