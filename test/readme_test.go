package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// named is how README.md names a test: directory and function.
var named = regexp.MustCompile("`((?:pkg|cmd|test)/[a-z0-9/-]+)` `(Test[A-Za-z0-9]+)`")

func TestEveryPromiseHasItsTests(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	promises := 0
	for line := range strings.Lines(string(readme)) {
		if !strings.HasPrefix(line, "| ") || strings.HasSuffix(strings.TrimSpace(line), "| the tests |") {
			continue
		}
		promises++
		tests := named.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 || len(tests) != strings.Count(line, "`Test") {
			t.Errorf("no test, or one without its directory: %s", line)
		}
		for _, test := range tests {
			if !testsIn(t, filepath.Join("..", test[1]))[test[2]] {
				t.Errorf("%s has no %s", test[1], test[2])
			}
		}
	}
	if promises < 10+12 {
		t.Errorf("%d promises, want the ten mistakes and the twelve pains at least", promises)
	}
}

// testsIn returns the tests of a directory by name.
func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]bool)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && (strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz")) {
				out[f.Name.Name] = true
			}
		}
	}
	return out
}
