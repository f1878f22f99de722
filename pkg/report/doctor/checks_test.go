package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpumem/gpumem/pkg/kube/tabletest"
)

// The documentation has the table of checks.
func TestTableOfChecks(t *testing.T) {
	table := "| check | condition | remedy |\n|---|---|---|\n"
	for _, c := range Checks() {
		page := strings.TrimPrefix(c.Doc, "troubleshooting.md")
		table += fmt.Sprintf("| `%s` | %s | %s: [more](%s) |\n", c.Name, c.Condition, c.Remedy, page)
	}
	tabletest.Between(t, "docs/troubleshooting.md", "pkg/report/doctor/checks.go", table)
}

// The table is short because people read all of it. The names are unique because programs select checks by
// name.
func TestChecksAreFewAndNamed(t *testing.T) {
	checks, names := Checks(), make(map[string]bool)
	for _, c := range checks {
		names[c.Name] = true
		for field, value := range map[string]string{"name": c.Name, "condition": c.Condition, "remedy": c.Remedy, "page": c.Doc} {
			if value == "" {
				t.Errorf("check %q has no %s", c.Name, field)
			}
		}
	}
	if len(names) != len(checks) || len(checks) > 15 {
		t.Errorf("%d checks with %d names, want each its own name, and 15 at most", len(checks), len(names))
	}
}
