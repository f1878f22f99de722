package printers

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

const notListedNote = "? is unknown: the pods could not be listed."

// Table prints one line per node, with a column for each GPU.
func Table(o table.ListOptions) Printer {
	return func(w io.Writer, r inspect.Report) error {
		var out bytes.Buffer
		if len(r.Nodes) > 0 {
			printNodes(&out, r, o)
		}
		_, err := w.Write(out.Bytes())
		return err
	}
}

// list prints rows to a buffer. It ignores the error, because a buffer accepts every write.
func list[R any](out *bytes.Buffer, columns []table.Column[R], rows []R, o table.ListOptions) {
	_ = table.List(out, columns, rows, o)
}

func printNodes(out *bytes.Buffer, r inspect.Report, o table.ListOptions) {
	columns, layout := nodeColumns(r), table.Layout{}
	o.Layout = &layout
	list(out, columns, r.Nodes, o)
	if o.NoHeaders {
		return
	}
	fmt.Fprintf(out, "\n%s", ofCluster(r))
	legend(out, r, table.Legend(&layout, columns, r.Nodes), o.Wide)
}

type nodeColumn = table.Column[inspect.Node]

// nodeColumns returns the columns of the overview, including the wide ones.
func nodeColumns(r inspect.Report) []nodeColumn {
	m, shown := measureOf(r.Nodes), indexes(r)
	columns := []nodeColumn{
		{Header: "NAME", Cell: func(n inspect.Node) string { return n.Name }},
		{Header: "ADDRESS", Omit: 5, Cell: func(n inspect.Node) string { return n.Address }},
		{Header: "STATUS", Wide: !slices.ContainsFunc(r.Nodes, isNotReady), Cell: func(n inspect.Node) string { return n.Status }},
	}
	for _, i := range shown {
		columns = append(columns, nodeColumn{Header: fmt.Sprintf("GPU%d", i), Cell: func(n inspect.Node) string { return gpuCell(n, i, m) }, Notes: gpuNotes()})
	}
	if slices.ContainsFunc(r.Nodes, hasUnattributed) {
		columns = append(columns, nodeColumn{Header: fmt.Sprintf("PENDING(%s)", m), Omit: 1, Cell: func(n inspect.Node) string { return pendingCell(n, m) }, Notes: []table.Note[inspect.Node]{
			{Text: "PENDING: on no known GPU", About: hasUnattributed},
			{Text: unitsMark + " units of unknown size", About: func(n inspect.Node) bool { return hasUnattributed(n) && unsized(*n.UnattributedMemory) }},
			{Text: sharesMark + " tenths of a GPU", About: func(n inspect.Node) bool { return hasUnattributed(n) && n.UnattributedMemory.InShares }},
		}})
	}
	return append(columns,
		nodeColumn{Header: "GPU-CORE(%)", Omit: 3, Hidden: !showsCores(r), Cell: coresCell},
		nodeColumn{Header: fmt.Sprintf("GPU-MEMORY(%s)", m), Omit: 2, Cell: func(n inspect.Node) string { return totalCell(n, m) }, Notes: []table.Note[inspect.Node]{
			{Text: withheldMark + " not offered by the kubelet (run doctor)", About: isWithheld},
			{Text: unitsMark + " units of unknown size", About: unitless},
			{Text: sharesMark + " tenths of a GPU", About: func(n inspect.Node) bool { return n.Capacity.InShares }},
		}},
		nodeColumn{Header: "ALLOCATED", Omit: 4, Cell: func(n inspect.Node) string { return percentOf(n.Requested, n.Capacity) }},
		nodeColumn{Header: fmt.Sprintf("LARGEST-FREE(%s)", m), Wide: true, Cell: func(n inspect.Node) string { return m.amount(n.LargestFree) }},
		nodeColumn{Header: "PODS", Wide: true, Cell: podsCell},
		nodeColumn{Header: fmt.Sprintf("UNIT(%s)", inMiB), Wide: true, Cell: unitCell},
		nodeColumn{Header: "ENFORCEMENT", Wide: true, Cell: func(n inspect.Node) string { return string(n.Enforcement) }},
		nodeColumn{Header: "DRIVER", Wide: true, Cell: func(n inspect.Node) string { return n.DriverVersion }},
		nodeColumn{Header: "MODEL", Wide: true, Cell: func(n inspect.Node) string { return models(n.GPUs) }},
	)
}

// gpuNotes returns the legend of a GPU's cell.
func gpuNotes() []table.Note[inspect.Node] {
	onGPU := func(is func(inspect.GPU) bool) func(inspect.Node) bool {
		return func(n inspect.Node) bool { return slices.ContainsFunc(n.GPUs, is) }
	}
	return []table.Note[inspect.Node]{
		{Text: "In GPU columns: allocated/total", About: func(n inspect.Node) bool { return len(n.GPUs) > 0 }},
		{Text: sickMark + " unhealthy", About: onGPU(isUnhealthy)},
		{Text: cordonedMark + " cordoned", About: onGPU(isCordoned)},
		{Text: aloneMark + " exclusive to one pod", About: onGPU(isExclusive)},
		{Text: "+ reserved for nominated pods", About: onGPU(isReserved)},
	}
}

func gpuCell(n inspect.Node, index int, m measure) string {
	at := slices.IndexFunc(n.GPUs, func(g inspect.GPU) bool { return g.Index == index })
	switch {
	case n.Problem != "":
		return "?"
	case at < 0:
		return absent
	}
	g := n.GPUs[at]
	return m.ratio(g.Requested, g.Capacity) + marks(g) + nominatedCell(m, g)
}

// marks returns the marks of a GPU, which the legend explains.
func marks(g inspect.GPU) string {
	switch {
	case isUnhealthy(g) && isCordoned(g):
		return sickMark + cordonedMark
	case isUnhealthy(g):
		return sickMark
	case isCordoned(g):
		return cordonedMark
	case isExclusive(g):
		return aloneMark
	default:
		return ""
	}
}

// coresCell returns the allocated cores of each GPU in per cent, in the order of the columns.
func coresCell(n inspect.Node) string {
	var cells []string
	for _, g := range n.GPUs {
		cells = append(cells, cores(g.RequestedCores))
	}
	return strings.Join(cells, ",")
}

func pendingCell(n inspect.Node, m measure) string {
	if n.UnattributedMemory == nil {
		return "0"
	}
	return m.amount(n.UnattributedMemory)
}

func totalCell(n inspect.Node, m measure) string {
	if n.Problem != "" {
		return m.amount(n.Requested) + "/?"
	}
	cell := m.ratio(n.Requested, n.Capacity)
	if n.Capacity.InShares {
		cell += sharesMark
	}
	if n.Withheld {
		cell += withheldMark
	}
	return cell
}

func podsCell(n inspect.Node) string {
	if n.PodCount == nil {
		return "?"
	}
	return strconv.Itoa(*n.PodCount)
}

func unitCell(n inspect.Node) string {
	if n.UnitMiB == 0 {
		return ""
	}
	return fmt.Sprint(n.UnitMiB)
}

// nominatedCell renders the memory that a GPU reserves for nominated pods, as a suffix of the allocated amount.
func nominatedCell(m measure, g inspect.GPU) string {
	if len(g.NominatedPods) == 0 {
		return ""
	}
	sum := nominatedMemory(g)
	return "+" + m.amount(&sum)
}

func nominatedMemory(g inspect.GPU) (sum inspect.Memory) {
	for _, p := range g.NominatedPods {
		add(&sum, &p.Memory)
	}
	return sum
}

// add adds an amount to a sum. It ignores nil.
func add(sum, amount *inspect.Memory) {
	if amount != nil {
		if sum.Units != 0 && sum.InShares != amount.InShares {
			sum.InShares = false // a sum of shares and units has a meaning only in MiB
		} else {
			sum.InShares = amount.InShares
		}
		sum.Units += amount.Units
		sum.MiB += amount.MiB
	}
}

// legend prints the marks' legend on one line, and the numbers of waiting pods and of nodes without GPU memory.
func legend(out *bytes.Buffer, r inspect.Report, marks []string, wide bool) {
	if len(marks) > 0 {
		fmt.Fprintln(out, strings.Join(marks, "; "))
	}
	if r.RequestedUnknown {
		fmt.Fprintln(out, notListedNote)
	}
	switch n := len(r.Waiting); n {
	case 0:
	case 1:
		fmt.Fprintln(out, "1 pod waits for a node: --details has the reason.")
	default:
		fmt.Fprintf(out, "%d pods wait for a node: --details has the reasons.\n", n)
	}
	if wide {
		printHiddenNodes(out, r)
	}
}

// isCordoned reports whether a GPU is cordoned, also if it has other faults.
func isCordoned(g inspect.GPU) bool { return g.Status.Cordoned }

func isUnhealthy(g inspect.GPU) bool { return !g.Healthy && !g.Status.OnlyCordoned() }

// isExclusive reports whether a healthy GPU takes no new pods because of an exclusive pod.
func isExclusive(g inspect.GPU) bool { return g.Healthy && g.Exclusive }

// isExclusiveShared reports whether other pods are still on the GPU of an exclusive pod.
func isExclusiveShared(g inspect.GPU) bool {
	return isExclusive(g) && g.PodCount != nil && *g.PodCount > 1
}

func isReserved(g inspect.GPU) bool { return len(g.NominatedPods) > 0 }

func isWithheld(n inspect.Node) bool { return n.Withheld }

// isNotReady reports whether a node's status in kubectl get nodes differs from plain Ready.
func isNotReady(n inspect.Node) bool { return n.Status != "" && n.Status != "Ready" }

// unitless reports whether the allocated memory of a node is known only in units.
func unitless(n inspect.Node) bool { return n.Requested != nil && unsized(*n.Requested) }

// hasUnattributed reports whether a node has pods on unknown GPUs.
func hasUnattributed(n inspect.Node) bool {
	return n.UnattributedMemory != nil && n.UnattributedMemory.Units > 0
}

// printHiddenNodes prints the number of nodes that the table leaves out.
func printHiddenNodes(out *bytes.Buffer, r inspect.Report) {
	switch r.WithoutInventory {
	case 0:
	case 1:
		fmt.Fprintln(out, "1 node without GPU memory is not shown.")
	default:
		fmt.Fprintf(out, "%d nodes without GPU memory are not shown.\n", r.WithoutInventory)
	}
}
