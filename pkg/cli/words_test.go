package cli_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Not every mode of the scheduler has an extender. So messages name the scheduler, which every mode has.
func TestMessagesNameTheScheduler(t *testing.T) {
	extender := regexp.MustCompile(`(?i)\b(an|the|or|gpumem's) extenders?\b`)
	for _, dir := range []string{".", "../report", "../kube"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING && extender.MatchString(text.Value) {
					t.Errorf("%s: %s names the extender", path, text.Value)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
