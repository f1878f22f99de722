package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// ofKubernetes are messages in the tables that others print.
func ofKubernetes() []string {
	return []string{
		"Insufficient gpumem.dev/gpu-mem", "Insufficient gpumem.dev/gpu-core", "preemption:", "unknown command", "connection refused",
		"x509", "remote error", "certificate required", "nvidia-smi", "i/o timeout",
	}
}

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	// What stands for something else in a message: numbers with their unit, names,
	// placeholders, and what was left out.
	variable = regexp.MustCompile(`…|\d+( GiB)?( GPUs)?( MiB)?( bytes)?|"[^"]*"|\b[A-Z]{2,}[A-Z/_-]*\b|GPU\d*|GPU-…|gpumem\.dev/[a-z-]+|[A-Z]\d+\*|Tesla|%|: |; |\b(mps|advisory|gpu-model|of cores on one|of cores)\b`)
)

// TestMessagesInTheDocsAreThoseOfTheCode looks for each message in a table of
// "message | meaning" among the strings of the programs.
func TestMessagesInTheDocsAreThoseOfTheCode(t *testing.T) {
	code := stringsOfTheCode(t)
	checked := 0
	for _, page := range []string{"../README.md", "../docs/existing-scheduler.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		inTable := false
		for line := range strings.Lines(string(text)) {
			switch {
			case strings.HasPrefix(line, "| message |"):
				inTable = true
				continue
			case !strings.HasPrefix(line, "|"):
				inTable = false
			}
			cells := strings.Split(line, " | ")
			if !inTable || len(cells) < 2 || strings.HasPrefix(line, "|---") {
				continue
			}
			for _, message := range quoted.FindAllStringSubmatch(cells[0], -1) {
				if checkMessage(t, page, message[1], code) {
					checked++
				}
			}
		}
	}
	if checked < 25 {
		t.Errorf("%d messages were looked for, want 25 or more: have the tables changed?", checked)
	}
}

// checkMessage looks for the parts of a message that do not vary. It reports
// whether there are any.
func checkMessage(t *testing.T, page, message, code string) bool {
	t.Helper()
	for _, other := range ofKubernetes() {
		if strings.Contains(message, other) {
			return false
		}
	}
	looked := false
	for _, part := range variable.Split(message, -1) {
		if part = strings.Trim(part, " ,.;:()[]-/'"); len(part) < 7 {
			continue
		}
		looked = true
		if !strings.Contains(code, part) {
			t.Errorf("%s: nothing prints %q of `%s`", page, part, message)
		}
	}
	return looked
}

// stringsOfTheCode returns the string literals of the programs.
func stringsOfTheCode(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for _, root := range []string{"../pkg", "../cmd"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if s, err := strconv.Unquote(lit.Value); err == nil {
						out.WriteString(s + "\n")
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}
