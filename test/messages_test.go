package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/test/helm"
)

// ofKubernetes are messages in the tables that others print.
func ofKubernetes() []string {
	return []string{
		"Insufficient gpumem.dev/gpu-mem", "Insufficient gpumem.dev/gpu-core", "preemption:", "unknown command", "connection refused",
		"x509", "requested number of devices", "no healthy devices present", "remote error", "certificate required", "nvidia-smi", "i/o timeout",
		"rpc error", "CreateContainerError",
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
	for _, page := range []string{"../docs/troubleshooting.md", "../docs/extender.md"} {
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

// verbs are where a text has something else each time.
var verbs = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z%]`)

// sentences returns the parts of a text that do not vary and are long enough to be looked for.
func sentences(format string) (out []string) {
	for _, part := range verbs.Split(format, -1) {
		part = strings.TrimPrefix(strings.Trim(part, " ,.;:()[]-/'\""), "want ")
		if len(part) >= 12 && strings.Contains(part, " ") {
			out = append(out, part)
		}
	}
	return out
}

// TestMessagesOfTheCodeAreInTheDocs looks in the docs for what a pod that waits is answered: the
// words of verdicts, of what else refuses nodes, and of what cannot be read of a pod.
func TestMessagesOfTheCodeAreInTheDocs(t *testing.T) {
	var docs strings.Builder
	for _, page := range []string{"../docs/troubleshooting.md", "../docs/extender.md", "../docs/choosing-gpus.md", "../docs/reference.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		docs.Write(text)
	}
	checked := 0
	check := func(n ast.Node) bool {
		if s, ok := literal(n); ok {
			for _, part := range sentences(s) {
				if checked++; !strings.Contains(docs.String(), part) {
					t.Errorf("no table of messages has %q of %q", part, s)
				}
			}
		}
		return true
	}
	for _, name := range []string{"../pkg/kube/reasons/verdict.go", "../pkg/kube/reasons/refusal.go", "../pkg/kube/reasons/why.go", "../pkg/kube/api/pod.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, check)
	}
	inspectCode(t, func(n ast.Node) {
		refusal, ok := n.(*ast.CompositeLit)
		if !ok || nameOf(refusal.Type) != "Refusal" {
			return
		}
		for _, element := range refusal.Elts {
			if field, ok := element.(*ast.KeyValueExpr); ok && nameOf(field.Key) == "Message" {
				ast.Inspect(field.Value, check)
			}
		}
	})
	if checked < 60 {
		t.Errorf("%d sentences were looked for, want 60 or more: where have they gone?", checked)
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
	for object := range strings.SplitSeq(helm.Values(t, "default"), "\n---\n") {
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

// Each Event of the table is recorded somewhere.
func TestTheTableOfEventsHasNoOther(t *testing.T) {
	unused := make(map[string]bool)
	file, err := parser.ParseFile(token.NewFileSet(), "../pkg/kube/event/event.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if row, ok := n.(*ast.KeyValueExpr); ok {
			unused[nameOf(row.Key)] = true
		}
		return true
	})
	if len(unused) < 15 {
		t.Errorf("the table has %d Events, want 15 or more: where has it gone?", len(unused))
	}
	inspectCode(t, func(n ast.Node) {
		if use, ok := n.(*ast.SelectorExpr); ok && nameOf(use.X) == "event" {
			delete(unused, use.Sel.Name)
		}
	})
	if len(unused) > 0 {
		t.Errorf("no program records the Events %v", slices.Sorted(maps.Keys(unused)))
	}
}

// tableIn returns the cells of the rows of a table, which has three columns.
func tableIn(t *testing.T, page, header string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), header+"\n|---|---|---|\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "|\n"), " | ")
		if len(cells) != 3 {
			break
		}
		rows = append(rows, cells)
	}
	return rows
}

// quotedIn returns what stands in backquotes in one column.
func quotedIn(rows [][]string, column int) map[string]bool {
	out := make(map[string]bool)
	for _, cells := range rows {
		for _, q := range quoted.FindAllStringSubmatch(cells[column], -1) {
			out[q[1]] = true
		}
	}
	return out
}

// givenReasons returns the words that programs write into a field Reason, except the reasons of the checks of package
// placement, whose table in the docs is generated. Those of conditions are in the type of Kubernetes.
func givenReasons(t *testing.T) (ours, ofConditions map[string]bool) {
	t.Helper()
	constants := make(map[string][]string) // in all packages
	inspectCode(t, func(n ast.Node) {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for i, value := range spec.Values {
				if s, ok := literal(value); ok && i < len(spec.Names) {
					constants[spec.Names[i].Name] = append(constants[spec.Names[i].Name], s)
				}
			}
		}
	})
	ours, ofConditions = make(map[string]bool), make(map[string]bool)
	word := regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	add := func(to map[string]bool, value ast.Expr) {
		texts := constants[nameOf(value)]
		if s, ok := literal(value); ok {
			texts = []string{s}
		}
		for _, s := range texts {
			if word.MatchString(s) {
				to[s] = true
			}
		}
	}
	inspectCode(t, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.CompositeLit:
			to := ours
			if name := nameOf(n.Type); name == "NodeCondition" || name == "PodCondition" {
				to = ofConditions
			}
			for _, element := range n.Elts {
				if field, ok := element.(*ast.KeyValueExpr); ok && nameOf(field.Key) == "Reason" {
					add(to, field.Value)
				}
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if field, ok := left.(*ast.SelectorExpr); ok && field.Sel.Name == "Reason" && len(n.Rhs) == len(n.Lhs) {
					add(ours, n.Rhs[i])
				}
			}
		}
	})
	return ours, ofConditions
}

func TestTheTableOfReasonsIsComplete(t *testing.T) {
	ours, ofConditions := givenReasons(t)
	if diff := cmp.Diff(ours, quotedIn(tableIn(t, "../docs/reference.md", "| reason | of | means |"), 0)); diff != "" {
		t.Errorf("reasons in docs/reference.md (-given +documented):\n%s", diff)
	}
	conditions := tableIn(t, "../docs/reference.md", "| condition | on | reasons |")
	if diff := cmp.Diff(ofConditions, quotedIn(conditions, 2)); diff != "" {
		t.Errorf("reasons of conditions in docs/reference.md (-given +documented):\n%s", diff)
	}
	types := make(map[string]bool)
	inspectCode(t, func(n ast.Node) {
		if spec, ok := n.(*ast.ValueSpec); ok && (nameOf(spec.Type) == "NodeConditionType" || nameOf(spec.Type) == "PodConditionType") {
			for _, value := range spec.Values {
				if s, ok := literal(value); ok {
					types[s] = true
				}
			}
		}
	})
	if diff := cmp.Diff(types, quotedIn(conditions, 0)); diff != "" {
		t.Errorf("conditions in docs/reference.md (-there are +documented):\n%s", diff)
	}
}

func TestTheTableOfAlertsIsComplete(t *testing.T) {
	text, err := os.ReadFile("../charts/gpumem/files/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	alerts := make(map[string]bool)
	for _, alert := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		alerts[alert[1]] = true
	}
	if diff := cmp.Diff(alerts, quotedIn(tableIn(t, "../docs/reference.md", "| alert | when | remedy |"), 0)); diff != "" {
		t.Errorf("alerts in docs/reference.md (-there are +documented):\n%s", diff)
	}
}
