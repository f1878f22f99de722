package printers

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// namedNodes is the number of nodes that a row names.
const namedNodes = 3

// Trouble prints nodes with their faults. Nodes with the same faults share a row, unless the table is
// wide.
func Trouble(o table.ListOptions) Printer {
	return func(w io.Writer, r inspect.Report) error {
		if len(r.Nodes) == 0 {
			return nil
		}
		m := measureOf(r.Nodes)
		return table.List(w, []table.Column[[]inspect.Node]{
			{Header: "NODES", Cell: func(nodes []inspect.Node) string { return fmt.Sprint(len(nodes)) }},
			{Header: "NAMES", Cell: func(nodes []inspect.Node) string {
				var names []string
				for _, n := range nodes[:min(len(nodes), namedNodes)] {
					names = append(names, n.Name)
				}
				if more := len(nodes) - namedNodes; more > 0 {
					return fmt.Sprintf("%s +%d", strings.Join(names, ","), more)
				}
				return strings.Join(names, ",")
			}},
			{Header: fmt.Sprintf("GPU-MEMORY(%s)", m), Omit: 1, Cell: func(nodes []inspect.Node) string {
				var requested, capacity inspect.Memory
				for _, n := range nodes {
					add(&requested, n.Requested)
					add(&capacity, &n.Capacity)
				}
				if slices.ContainsFunc(nodes, func(n inspect.Node) bool { return n.Requested == nil }) {
					return m.ratio(nil, capacity)
				}
				return m.ratio(&requested, capacity)
			}},
			{Header: "TROUBLE", Cut: true, Cell: trouble}, // last, because it is long
		}, inspect.Alike(r.Nodes, func(n inspect.Node) string {
			if o.Wide {
				return n.Name
			}
			return trouble([]inspect.Node{n})
		}), o)
	}
}

// trouble returns the faults that the nodes have in common.
func trouble(alike []inspect.Node) string { return strings.Join(alike[0].Troubles(), "; ") }
