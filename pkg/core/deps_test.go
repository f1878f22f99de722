package core_test

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestWhatTheCoreImports checks that the core can be tested, fuzzed and simulated without a cluster, a GPU
// or a clock, and that its packages import each other in one direction only.
func TestWhatTheCoreImports(t *testing.T) {
	const wing = "github.com/gpumem/gpumem/pkg/core/"
	core := func(names ...string) (paths []string) {
		for _, name := range names {
			paths = append(paths, wing+name)
		}
		return paths
	}
	tests := map[string][]string{ // besides the standard library
		"gpu":        nil,
		"placement":  core("gpu"),
		"ranking":    core("gpu", "placement"),
		"preemption": core("gpu", "placement"),
		"nearmiss":   core("gpu", "placement"),
		"decide":     core("gpu", "placement", "preemption", "nearmiss"),
		"cache":      core("gpu", "placement", "ranking", "decide"),
		"defrag":     core("gpu", "placement", "ranking", "preemption"),
		// The node's rules are outside pkg/core and obey the same limits.
		"../node/grants/allocation": core("gpu", "placement"),
	}
	// Packages of the standard library that the core must not import.
	forbidden := []string{"net", "net/http", "os", "os/exec", "syscall", "unsafe", "log", "math/rand", "math/rand/v2"}
	for name, allowed := range tests {
		t.Run(name, func(t *testing.T) {
			files, err := filepath.Glob(filepath.Join(name, "*.go"))
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
					path, err := strconv.Unquote(spec.Path.Value)
					if err != nil {
						t.Fatal(err)
					}
					standard := !strings.Contains(strings.Split(path, "/")[0], ".")
					ok := standard && !slices.Contains(forbidden, path)
					for _, a := range allowed {
						ok = ok || path == a || strings.HasSuffix(a, "/") && strings.HasPrefix(path, a)
					}
					if !ok {
						t.Errorf("%s imports %s", file, path)
					}
				}
			}
		})
	}
}
