package printers

import (
	"bytes"
	"fmt"
	"io"

	"github.com/gpumem/gpumem/pkg/inspect"
)

// maxLongHeaders is how many GPU columns say what their numbers are. A line
// with more would not fit a screen.
const maxLongHeaders = 4

const notListed = "? is not known: the pods could not be listed.\n"

// Table prints one line per node, with a column for each GPU.
func Table(o TableOptions) Printer {
	return func(w io.Writer, r inspect.Report) error {
		var out bytes.Buffer
		if len(r.Nodes) > 0 {
			o.table(&out, r)
		}
		_, err := w.Write(out.Bytes())
		return err
	}
}

func (o TableOptions) table(out *bytes.Buffer, r inspect.Report) {
	m, columns, pending := measureOf(r.Nodes), indexes(r), anyPending(r)
	g := newGrid(out)
	if !o.NoHeaders {
		g.row(o.header(m, columns, pending)...)
	}
	for _, n := range r.Nodes {
		g.row(o.line(n, m, columns, pending)...)
	}
	g.flush()
	if o.NoHeaders {
		return
	}
	fmt.Fprintf(out, "\n%s", ofCluster(r))
	o.legend(out, r)
}

func (o TableOptions) header(m measure, indexes []int, pending bool) []string {
	cells := []string{"NAME", "ADDRESS"}
	if o.Wide {
		cells = append(cells, "STATUS")
	}
	for _, i := range indexes {
		name := fmt.Sprintf("GPU%d", i)
		if len(indexes) <= maxLongHeaders {
			name += "(ALLOCATED/TOTAL)"
		}
		cells = append(cells, name)
	}
	if pending {
		cells = append(cells, fmt.Sprintf("PENDING(%s)", m))
	}
	cells = append(cells, fmt.Sprintf("GPU-MEMORY(%s)", m), "ALLOCATED")
	if o.Wide {
		cells = append(cells, fmt.Sprintf("LARGEST-FREE(%s)", m), "PODS", fmt.Sprintf("UNIT(%s)", inMiB), "ENFORCEMENT", "DRIVER", "MODEL")
	}
	return cells
}

func (o TableOptions) line(n inspect.Node, m measure, indexes []int, pending bool) []string {
	cells := []string{n.Name, n.Address}
	if o.Wide {
		cells = append(cells, n.Status)
	}
	at := make(map[int]inspect.GPU, len(n.GPUs))
	for _, g := range n.GPUs {
		at[g.Index] = g
	}
	for _, i := range indexes {
		g, ok := at[i]
		switch {
		case n.Problem != "":
			cells = append(cells, "?")
		case !ok:
			cells = append(cells, absent)
		default:
			cell := m.ratio(g.Requested, g.Capacity)
			if !g.Healthy {
				cell += mark
			}
			cells = append(cells, cell+kept(m, g))
		}
	}
	if pending {
		amount := "0"
		if n.UnattributedMemory != nil {
			amount = m.amount(n.UnattributedMemory)
		}
		cells = append(cells, amount)
	}
	total := m.ratio(n.Requested, n.Capacity)
	if n.Problem != "" {
		total = m.amount(n.Requested) + "/?"
	}
	cells = append(cells, total, percentOf(n.Requested, n.Capacity))
	if o.Wide {
		pods := "?"
		if n.Requested != nil {
			pods = fmt.Sprint(n.PodCount)
		}
		unit := ""
		if n.UnitMiB > 0 {
			unit = fmt.Sprint(n.UnitMiB)
		}
		cells = append(cells, m.amount(n.LargestFree), pods, unit, string(n.Enforcement), n.DriverVersion, models(n.GPUs))
	}
	return cells
}

// kept is what is kept of a GPU for nominated pods, beside what is allocated.
func kept(m measure, g inspect.GPU) string {
	if len(g.Kept) == 0 {
		return ""
	}
	sum := keptOf(g)
	return "+" + m.amount(&sum)
}

func keptOf(g inspect.GPU) (sum inspect.Memory) {
	for _, p := range g.Kept {
		sum.Units += p.Memory.Units
		sum.MiB += p.Memory.MiB
	}
	return sum
}

func (o TableOptions) legend(out *bytes.Buffer, r inspect.Report) {
	sick, promised := false, false
	for _, n := range r.Nodes {
		for _, g := range n.GPUs {
			sick, promised = sick || !g.Healthy, promised || len(g.Kept) > 0
		}
	}
	if sick {
		fmt.Fprintf(out, "%s unhealthy: takes no new pods; --details says why.\n", mark)
	}
	if promised {
		fmt.Fprintln(out, "+ is kept for pods that are nominated to the node; --details names them.")
	}
	if anyPending(r) {
		fmt.Fprintln(out, "PENDING is held by pods that are on no known GPU; --details lists them.")
	}
	if r.RequestedUnknown {
		fmt.Fprint(out, notListed)
	}
	switch n := len(r.Waiting); n {
	case 0:
	case 1:
		fmt.Fprintln(out, "1 pod waits for a node; --details says why.")
	default:
		fmt.Fprintf(out, "%d pods wait for a node; --details says why.\n", n)
	}
	if o.Wide {
		left(out, r)
	}
}

// anyPending reports whether some pod is on no known GPU.
func anyPending(r inspect.Report) bool {
	for _, n := range r.Nodes {
		if n.UnattributedMemory != nil && n.UnattributedMemory.Units > 0 {
			return true
		}
	}
	return false
}

// left says how many nodes are not in the table.
func left(out *bytes.Buffer, r inspect.Report) {
	switch r.WithoutInventory {
	case 0:
	case 1:
		fmt.Fprintln(out, "1 node without GPU memory is not shown.")
	default:
		fmt.Fprintf(out, "%d nodes without GPU memory are not shown.\n", r.WithoutInventory)
	}
}
