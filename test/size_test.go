package test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What a reader can keep in mind. Generated code and tests do not count.
const (
	maxMethods     = 25   // of one type, exported or not
	maxPackage     = 1500 // lines of one package, comments and blank lines included
	maxFunction    = 60   // lines of one function
	maxMain        = 150  // lines of one file of a main package: it is wiring
	maxCore        = 2500 // lines of code of the packages in coreOf together: no comments, no blank lines
	coreOf         = "gpu placement cache allocation decide"
	sizeOfCoreName = "the core"
)

// tooLarge has what is above a limit today, and how large it may be. It only shrinks: take from it
// what has come below its limit.
var tooLarge = map[string]int{}

// sizes has the size of each thing by its name, with its kind before it.
type sizes map[string]int

func TestLayoutOfSizes(t *testing.T) {
	found := make(sizes)
	for _, root := range []string{"../pkg", "../cmd"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata"):
				return fs.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			return found.add(path)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, size := range found {
		if most := max(limitOf(name), tooLarge[name]); size > most {
			t.Errorf("%s has grown to %d, want %d at most", name, size, most)
		}
	}
	for name := range tooLarge {
		if found[name] <= limitOf(name) {
			t.Errorf("%s is %d, %d at most: take it from the list of what is too large", name, found[name], limitOf(name))
		}
	}
}

func limitOf(name string) int {
	kind, _, _ := strings.Cut(name, " ")
	return map[string]int{"type": maxMethods, "package": maxPackage, "function": maxFunction, "file": maxMain, "the": maxCore}[kind]
}

// add counts one file.
func (s sizes) add(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return err
	}
	if ast.IsGenerated(file) {
		return nil
	}
	of := strings.TrimPrefix(strings.TrimPrefix(filepath.Dir(path), "../"), "pkg/")
	lines := bytes.Count(text, []byte("\n"))
	s["package "+of] += lines
	if file.Name.Name == "main" {
		s[fmt.Sprintf("file %s/%s", of, filepath.Base(path))] = lines
	}
	if folder, ok := strings.CutPrefix(of, "core/"); ok && slices.Contains(strings.Fields(coreOf), folder) {
		s[sizeOfCoreName] += linesOfCode(set, file, text)
	}
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := fmt.Sprintf("function %s.%s", of, fn.Name.Name)
		s[name] = max(s[name], set.Position(fn.End()).Line-set.Position(fn.Pos()).Line+1)
		if fn.Recv != nil {
			s[fmt.Sprintf("type %s.%s", of, receiver(fn.Recv.List[0].Type))]++
		}
	}
	return nil
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return fmt.Sprintf("%T", e)
}

// linesOfCode returns how many lines of a file are neither blank nor comment alone.
func linesOfCode(set *token.FileSet, file *ast.File, text []byte) (n int) {
	comment := make(map[int]bool)
	for _, group := range file.Comments {
		for _, c := range group.List {
			for line := set.Position(c.Pos()).Line; line <= set.Position(c.End()).Line; line++ {
				comment[line] = true
			}
		}
	}
	at := 0
	for line := range bytes.Lines(text) {
		at++
		line = bytes.TrimSpace(line)
		alone := comment[at] && (bytes.HasPrefix(line, []byte("//")) || bytes.HasPrefix(line, []byte("/*")))
		if len(line) > 0 && !alone {
			n++
		}
	}
	return n
}
