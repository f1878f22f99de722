package printers

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// troubled are nodes with the same trouble.
type troubled struct {
	nodes               []string
	requested, capacity inspect.Memory
	unknown             bool // what is allocated
	trouble             string
}

// namedNodes is how many nodes of a row are named.
const namedNodes = 3

// Trouble prints nodes with what is wrong with them. Those with the same trouble are one row, unless
// the table is wide.
func Trouble(o TableOptions) Printer {
	return func(w io.Writer, r inspect.Report) error {
		m := measureOf(r.Nodes)
		rows := troubles(r, o.Wide)
		if len(rows) == 0 {
			return nil
		}
		return table.List(w, []table.Column[troubled]{
			{Header: "NODES", Cell: func(t troubled) string { return fmt.Sprint(len(t.nodes)) }},
			{Header: "NAMES", Cell: func(t troubled) string {
				if more := len(t.nodes) - namedNodes; more > 0 {
					return fmt.Sprintf("%s +%d", strings.Join(t.nodes[:namedNodes], ","), more)
				}
				return strings.Join(t.nodes, ",")
			}},
			{Header: fmt.Sprintf("GPU-MEMORY(%s)", m), Cell: func(t troubled) string {
				if t.unknown {
					return m.ratio(nil, t.capacity)
				}
				return m.ratio(&t.requested, t.capacity)
			}},
			{Header: "TROUBLE", Cell: func(t troubled) string { return t.trouble }}, // last: it is long
		}, rows, table.ListOptions{NoHeaders: o.NoHeaders})
	}
}

func troubles(r inspect.Report, each bool) (rows []troubled) {
	at := make(map[string]int)
	for _, n := range r.Nodes {
		trouble := strings.Join(n.Troubles(), "; ")
		i, known := at[trouble]
		if !known || each {
			i = len(rows)
			at[trouble] = i
			rows = append(rows, troubled{trouble: trouble})
		}
		row := &rows[i]
		row.nodes = append(row.nodes, n.Name)
		row.unknown = row.unknown || n.Requested == nil
		add(&row.requested, n.Requested)
		add(&row.capacity, &n.Capacity)
	}
	return rows
}
