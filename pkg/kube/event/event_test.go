package event

import (
	"fmt"
	"testing"

	"github.com/gpumem/gpumem/pkg/kube/tabletest"
)

func TestTableOfEvents(t *testing.T) {
	seen := make(map[string]bool)
	table := "| reason | on | type | says |\n|---|---|---|---|\n"
	add := func(on string, rows []Row) {
		for i, r := range rows {
			key := r.Reason + " " + on + " " + r.Type
			if r.Reason == "" || r.Type == "" || r.Doc == "" || seen[key] {
				t.Errorf("Event %d on a %s: want a reason, a type and a description, and no second row of that reason and type: %+v", i, on, r)
			}
			seen[key] = true
			table += fmt.Sprintf("| `%s` | %s | %s | %s |\n", r.Reason, on, r.Type, r.Doc)
		}
	}
	add("pod", onPods[:])
	add("node", onNodes[:])
	tabletest.Between(t, "docs/reference.md", "pkg/kube/event/event.go", table)
}
