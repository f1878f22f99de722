package test

import (
	"bufio"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var updateWords = flag.Bool("update-words", false, "write test/words.txt")

// notPlain are words that readers had to read twice, or that stand for a term that Kubernetes has.
var notPlain = regexp.MustCompile(`(?i)\b(mend(s|ed|ing)?|whoever|anew|beside|books|would do|of which|nobody|told|stays|held|room)\b`)

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

// What people read has no more of these words than words.txt allows: the pages, what the programs
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
		found[strings.TrimPrefix(page, "../")] += len(notPlain.FindAllIndex(text, -1))
	}
	for _, root := range []string{"../pkg", "../cmd"} {
		if err := wordsOfPrograms(root, found); err != nil {
			t.Fatal(err)
		}
	}
	maps.DeleteFunc(found, func(_ string, n int) bool { return n == 0 })
	if *updateWords {
		writeAllowed(t, found)
	}
	allowed := readAllowed(t)
	for _, where := range slices.Sorted(maps.Keys(found)) {
		if found[where] > allowed[where] {
			t.Errorf("%s has %d words of the list, and %d are allowed: write them plainly, %s", where, found[where], allowed[where], notPlain)
		}
	}
}

// wordsOfPrograms counts the words in texts of the programs, by package. One word alone is a name.
func wordsOfPrograms(root string, found map[string]int) error {
	return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := literal(n); ok && strings.Contains(s, " ") {
				found[strings.TrimPrefix(filepath.Dir(path), "../")] += len(notPlain.FindAllString(s, -1))
			}
			return true
		})
		return nil
	})
}

const allowedWords = "words.txt"

func writeAllowed(t *testing.T, found map[string]int) {
	t.Helper()
	var out strings.Builder
	out.WriteString("# How many words of the list in words_test.go each page or package may still have. Take away, add none:\n# go test . -run TestWordsArePlain -update-words\n")
	for _, where := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(&out, "%d %s\n", found[where], where)
	}
	if err := os.WriteFile(allowedWords, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readAllowed(t *testing.T) map[string]int {
	t.Helper()
	file, err := os.Open(allowedWords)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	allowed := make(map[string]int)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var n int
		var where string
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		if _, err := fmt.Sscan(lines.Text(), &n, &where); err != nil {
			t.Fatalf("%s: %q: %v", allowedWords, lines.Text(), err)
		}
		allowed[where] = n
	}
	return allowed
}
