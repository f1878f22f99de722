package doctor

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of checks to docs/troubleshooting.md")

// The documentation has the table of checks.
func TestTableOfChecks(t *testing.T) {
	const path = "../../../docs/troubleshooting.md"
	const begin, end = "<!-- What follows is made of pkg/report/doctor/checks.go: make update -->\n", "<!-- The end of it. -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("no place for the table between %q and %q", begin, end)
	}
	table := "| check | condition | remedy |\n|---|---|---|\n"
	for _, c := range Checks() {
		page := strings.TrimPrefix(c.Doc, "troubleshooting.md")
		table += fmt.Sprintf("| `%s` | %s | %s: [more](%s) |\n", c.Name, c.Wants, c.Remedy, page)
	}
	now := before + begin + table + end + after
	if now == string(text) {
		return
	}
	if !*update {
		t.Errorf("%s is stale: make update", path)
	} else if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
		t.Error(err)
	}
}

// People read the whole table, and programs select by name.
func TestChecksAreFewAndNamed(t *testing.T) {
	checks, names := Checks(), make(map[string]bool)
	for _, c := range checks {
		names[c.Name] = true
		for field, value := range map[string]string{"name": c.Name, "condition": c.Wants, "remedy": c.Remedy, "page": c.Doc} {
			if value == "" {
				t.Errorf("check %q has no %s", c.Name, field)
			}
		}
	}
	if len(names) != len(checks) || len(checks) > 15 {
		t.Errorf("%d checks with %d names, want each its own name, and 15 at most", len(checks), len(names))
	}
}
