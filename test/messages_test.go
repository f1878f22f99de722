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

	"github.com/google/go-cmp/cmp"
)

// ofKubernetes are messages in the tables that others print.
func ofKubernetes() []string {
	return []string{
		"Insufficient gpumem.dev/gpu-mem", "Insufficient gpumem.dev/gpu-core", "preemption:", "unknown command", "connection refused",
		"x509", "requested number of devices", "no healthy devices present", "remote error", "certificate required", "nvidia-smi", "i/o timeout",
		"rpc error",
	}
}

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	// What stands for something else in a message: numbers with their unit, names,
	// placeholders, and what was left out.
	variable = regexp.MustCompile(`…|\d+( GiB)?( GPUs)?( MiB)?( bytes)?|"[^"]*"|\b[A-Z]{2,}[A-Z/_-]*\b|GPU\d*|GPU-…|gpumem\.dev/[a-z-]+|[A-Z]\d+\*|Tesla|%|: |; |\((out of use|over-committed)\)|\b(mps|advisory|gpu-model|of cores on one|of cores)\b`)
)

// TestMessagesInTheDocsAreThoseOfTheCode looks for each message in a table of
// "message | meaning" among the strings of the programs.
func TestMessagesInTheDocsAreThoseOfTheCode(t *testing.T) {
	code := stringsOfTheCode(t)
	checked := 0
	for _, page := range []string{"../docs/troubleshooting.md", "../docs/existing-scheduler.md"} {
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

// stringsOfTheCode returns the string literals of the programs, and the chart's
// admission policies.
func stringsOfTheCode(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	inspectCode(t, func(n ast.Node) {
		if s, ok := literal(n); ok {
			out.WriteString(s + "\n")
		}
	})
	chart, err := os.ReadFile("../charts/gpumem/tests/golden/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for object := range strings.SplitSeq(string(chart), "\n---\n") {
		if strings.Contains(object, "\nkind: ValidatingAdmissionPolicy\n") {
			out.WriteString(object)
		}
	}
	return out.String()
}

// inspectCode calls f for each node of the syntax of the programs.
func inspectCode(t *testing.T, f func(ast.Node)) {
	t.Helper()
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
				f(n)
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// literal returns the text of a string literal.
func literal(n ast.Node) (string, bool) {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}

// The table of Events has the reasons that the programs give, all of them, and
// each beside the kinds of objects that have it.
func TestTheTableOfEventsIsComplete(t *testing.T) {
	recorded := make(map[string]bool) // "REASON on KIND"
	inspectCode(t, func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return
		}
		if on, ok := method.X.(*ast.SelectorExpr); !ok || on.Sel.Name != "events" {
			return
		}
		reason, ok := literal(call.Args[len(call.Args)-2])
		if !ok {
			t.Errorf("an Event whose reason is no literal: %s", method.Sel.Name)
		}
		recorded[reason+" on "+strings.ToLower(method.Sel.Name)] = true
	})
	text, err := os.ReadFile("../docs/seeing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| reason | on | says |\n|---|---|---|\n")
	documented := make(map[string]bool)
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 {
			break
		}
		for _, reason := range quoted.FindAllStringSubmatch(cells[0], -1) {
			for _, kind := range []string{"node", "pod"} {
				if strings.Contains(cells[1], kind) {
					documented[reason[1]+" on "+kind] = true
				}
			}
		}
	}
	delete(documented, "FailedScheduling on pod") // by kube-scheduler
	if diff := cmp.Diff(recorded, documented); diff != "" {
		t.Errorf("docs/seeing.md (-recorded +documented):\n%s", diff)
	}
}
