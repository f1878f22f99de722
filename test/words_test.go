package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// notPlain are words that readers had to read twice, or that stand for a term that Kubernetes has.
var notPlain = regexp.MustCompile(`(?i)\b(mend(s|ed|ing)?|whoever|anew|beside|books|would do|of which|nobody|told|stays|held|room)\b`)

// namesInWords have such a word and are stable: the annotation room-made.
var namesInWords = regexp.MustCompile(`room-made`)

// maxWords is what README.md may count: five minutes to read.
const maxWords = 1500

func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(string(text))); n > maxWords {
		t.Errorf("README.md counts %d words, want %d at most: move something to docs", n, maxWords)
	}
}

// What people read has these words where words.txt says why alone: the pages, what the programs
// print, and the chart.
func TestWordsArePlain(t *testing.T) {
	found := make(map[string]int) // by page, or by package
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../README.md", "../CONTRIBUTING.md", "../charts/gpumem/README.md", "../charts/gpumem/values.yaml",
		"../charts/gpumem/templates/NOTES.txt", "../charts/gpumem/files/rules.yaml", "../charts/gpumem/files/dashboard.json") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(page, "../")] += len(notPlain.FindAllIndex(namesInWords.ReplaceAll(text, nil), -1))
	}
	for _, root := range []string{"../pkg", "../cmd"} {
		if err := wordsOfPrograms(root, found); err != nil {
			t.Fatal(err)
		}
	}
	maps.DeleteFunc(found, func(_ string, n int) bool { return n == 0 })
	if diff := cmp.Diff(readAllowed(t), found); diff != "" {
		t.Errorf("words of the list by page and package, with those of %s (-) and those that are there (+): write them plainly, %s\n%s", allowedWords, notPlain, diff)
	}
}

// wordsOfPrograms counts the words in texts of the programs and in comments, by package. One word alone is a name.
func wordsOfPrograms(root string, found map[string]int) error {
	return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := literal(n); ok && strings.Contains(s, " ") {
				found[strings.TrimPrefix(filepath.Dir(path), "../")] += len(notPlain.FindAllString(namesInWords.ReplaceAllString(s, ""), -1))
			}
			return true
		})
		for _, comment := range file.Comments {
			found[strings.TrimPrefix(filepath.Dir(path), "../")] += len(notPlain.FindAllString(comment.Text(), -1))
		}
		return nil
	})
}

const allowedWords = "words.txt"

// readAllowed reads how many words each page or package may have. What follows a # says why.
func readAllowed(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile(allowedWords)
	if err != nil {
		t.Fatal(err)
	}
	allowed := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		said, why, _ := strings.Cut(line, "#")
		var n int
		var where string
		if _, err := fmt.Sscan(said, &n, &where); err != nil || strings.TrimSpace(why) == "" {
			t.Fatalf("%s: %q: %v; want a number, a page or a package, and after a # why", allowedWords, line, err)
		}
		allowed[where] = n
	}
	return allowed
}
