package printers

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Details prints each node with its GPUs and the pods on them, and then the
// pods that wait for a node.
func Details(o TableOptions) Printer {
	return func(w io.Writer, r inspect.Report) error {
		var out bytes.Buffer
		for i, n := range r.Nodes {
			if i > 0 {
				fmt.Fprintf(&out, "\n%s\n\n", strings.Repeat("-", 72))
			}
			o.node(&out, n)
		}
		if len(r.Nodes) > 0 && !o.NoHeaders {
			fmt.Fprintf(&out, "\n%s\n\n%s", strings.Repeat("-", 72), ofCluster(r))
			if r.RequestedUnknown {
				fmt.Fprintln(&out, notListed)
			}
			left(&out, r)
		}
		if len(r.Waiting) > 0 {
			o.waiting(&out, r)
		}
		_, err := w.Write(out.Bytes())
		return err
	}
}

// measureFor is that of the node alone: its tables hold no other's numbers.
func measureFor(n inspect.Node) measure {
	if n.Capacity.InShares {
		return inShares
	}
	if n.UnitMiB == 0 {
		return inUnits
	}
	return measureOf([]inspect.Node{n})
}

func (o TableOptions) node(out *bytes.Buffer, n inspect.Node) {
	m := measureFor(n)
	g := newGrid(out)
	g.row("NAME:", n.Name)
	g.row("ADDRESS:", n.Address)
	if n.Status != "" {
		g.row("STATUS:", n.Status)
	}
	if len(n.GPUs) > 0 {
		g.row("DRIVER:", n.DriverVersion)
		g.row("ENFORCEMENT:", enforcement(n))
		if n.UnitMiB != 1024 && !n.Capacity.InShares {
			g.row("UNIT:", fmt.Sprintf("%d MiB", n.UnitMiB))
		}
	}
	switch {
	case n.Problem != "":
		g.row("GPU-MEMORY:", fmt.Sprintf("%s/? %s", m.amount(n.Requested), m))
		g.row("PROBLEM:", n.Problem)
	default:
		g.row("GPU-MEMORY:", fmt.Sprintf("%s %s (%s)", m.ratio(n.Requested, n.Capacity), m, percentOf(n.Requested, n.Capacity)))
	}
	g.flush()
	if len(n.GPUs) > 0 {
		fmt.Fprintln(out)
		o.gpus(out, n, m)
	}
	if hasPods(n) {
		fmt.Fprintln(out)
		o.pods(out, n, m)
	}
	notes(out, n, m)
}

// enforcement is the level that holds on the node, and why no stronger one does.
func enforcement(n inspect.Node) string {
	if n.Weaker == "" {
		return string(n.Enforcement)
	}
	return fmt.Sprintf("%s (%s)", n.Enforcement, n.Weaker)
}

func (o TableOptions) gpus(out *bytes.Buffer, n inspect.Node, m measure) {
	withCores := usesCores(n)
	header := []string{"GPU", fmt.Sprintf("ALLOCATED/TOTAL(%s)", m), "ALLOCATED"}
	if withCores {
		header = append(header, "GPU-CORE(%)")
	}
	header = append(header, "HEALTH", "UUID")
	if o.Wide {
		header = append(header, "PCI", "NUMA", "NVLINKS", "COMPUTE", "SPEED", "MEMORY(MiB)")
	}
	g := newGrid(out)
	if !o.NoHeaders {
		g.row(append(header, "MODEL")...)
	}
	for _, d := range n.GPUs {
		cells := []string{fmt.Sprint(d.Index), m.ratio(d.Requested, d.Capacity), percentOf(d.Requested, d.Capacity)}
		if withCores {
			cells = append(cells, fmt.Sprintf("%d/%d", d.RequestedCores, gpu.CoresPerDevice))
		}
		cells = append(cells, health(d), string(d.UUID))
		if o.Wide {
			numa, speed := "", ""
			if d.NUMANode != nil {
				numa = fmt.Sprint(*d.NUMANode)
			}
			if d.Speed > 0 {
				speed = fmt.Sprint(d.Speed)
			}
			cells = append(cells, d.PCI, numa, linked(d.NVLinks), d.ComputeCapability, speed, fmt.Sprint(d.MemoryMiB))
		}
		g.row(append(cells, d.Model)...)
	}
	g.flush()
}

// linked names the GPUs that NVLinks lead to, and how many to each: "1×2,3×1".
func linked(links []inspect.NVLink) string {
	var parts []string
	for _, l := range links {
		parts = append(parts, fmt.Sprintf("%d×%d", l.GPU, l.Lanes))
	}
	return strings.Join(parts, ",")
}

func (o TableOptions) pods(out *bytes.Buffer, n inspect.Node, m measure) {
	withCores := usesCores(n)
	g := newGrid(out)
	if !o.NoHeaders {
		header := []string{"GPU", "NAMESPACE", "NAME", fmt.Sprintf("GPU-MEMORY(%s)", m)}
		if withCores {
			header = append(header, "GPU-CORE(%)")
		}
		header = append(header, "STATE", "ENFORCEMENT")
		if o.Wide {
			header = append(header, "GPU-UUID")
		}
		g.row(header...)
	}
	row := func(index, uuid string, p inspect.Pod) {
		cells := []string{index, p.Namespace, p.Name, m.amount(&p.Memory)}
		if withCores {
			cells = append(cells, cores(p.Cores))
		}
		enforcement := p.Enforcement
		if enforcement == "" {
			enforcement = unknown
		}
		cells = append(cells, p.State, enforcement)
		if o.Wide {
			cells = append(cells, uuid)
		}
		g.row(cells...)
	}
	for _, d := range n.GPUs {
		for _, p := range d.Pods {
			row(fmt.Sprint(d.Index), string(d.UUID), p)
		}
	}
	for _, p := range n.Unattributed {
		row(unknown, uuids(p.Claims), p)
	}
	g.flush()
}

// notes say in words what a table does not show.
func notes(out *bytes.Buffer, n inspect.Node, m measure) {
	var lines []string
	note := func(format string, args ...any) { lines = append(lines, table.Clean(fmt.Sprintf(format, args...))) }
	for _, g := range n.GPUs {
		noteGPU(note, g, m)
	}
	for _, p := range n.Unattributed {
		switch {
		case p.Problem != "":
			note("pod %s/%s: %s", p.Namespace, p.Name, p.Problem)
		case n.Problem != "":
			// Which GPUs it has is not known.
		case len(p.Claims) > 0:
			note("pod %s/%s is assigned %s, which this node does not offer", p.Namespace, p.Name, uuids(p.Claims))
		default:
			note("pod %s/%s is assigned no GPU yet", p.Namespace, p.Name)
		}
	}
	if n.Withheld {
		note("The kubelet of this node offers none of its GPU memory, and no new pod gets any; kubectl inspect gpumem doctor says more")
	}
	if n.UnattributedMemory != nil && len(n.GPUs) > 0 {
		note("New pods find the memory of pods with GPU %s taken on every GPU", unknown)
	}
	if len(n.GPUs) == 0 && n.Problem == "" {
		note("The device plugin has reported no GPU of this node")
	}
	if slices.ContainsFunc(n.GPUs, func(g inspect.GPU) bool { return g.Status.ByClaims }) {
		note("The node hands its GPUs out by claims: no pod gets any of it by the extended resource")
	}
	if hidden := unlisted(n); hidden > 0 {
		note("Pods of other namespaces that are not listed: %d", hidden)
	}
	if len(lines) > 0 {
		fmt.Fprintf(out, "\n* %s\n", strings.Join(lines, "\n* "))
	}
}

// unlisted counts the pods of other namespaces than those that are listed.
func unlisted(n inspect.Node) int {
	if n.PodCount == nil {
		return 0
	}
	return *n.PodCount - listed(n)
}

func health(g inspect.GPU) string {
	switch {
	case joined(g):
		return "Healthy, takes no new pods"
	case alone(g):
		return "Healthy, exclusive"
	case g.Healthy:
		return "Healthy"
	case g.Status.OnlyCordoned():
		return "Cordoned"
	default:
		return "Unhealthy"
	}
}

// noteGPU notes what is wrong with a GPU or its pods.
func noteGPU(note func(format string, args ...any), g inspect.GPU, m measure) {
	switch {
	case g.Status.OnlyCordoned():
		note("GPU%d is %s and takes no new pods until it is uncordoned", g.Index, g.Unhealthy)
	case !g.Healthy:
		note("GPU%d is unhealthy and takes no new pods: %s", g.Index, g.Unhealthy)
	case joined(g):
		note("GPU%d takes no new pods: one that is there has the policy exclusive, which it had not when the others came", g.Index)
	case alone(g):
		note("GPU%d has one pod alone: its policy is exclusive, and it shares the GPU with no other", g.Index)
	}
	if g.Foreign != nil {
		note("GPU%d: %s %s are used by programs that were granted none, and not given to pods", g.Index, m.amount(g.Foreign), m)
	}
	if g.Requested != nil && g.Requested.Units > g.Capacity.Units {
		over := inspect.Memory{Units: g.Requested.Units - g.Capacity.Units, MiB: g.Requested.MiB - g.Capacity.MiB, InShares: g.Capacity.InShares}
		note("GPU%d is over-committed by %s %s", g.Index, m.amount(&over), m)
	}
	for _, p := range g.Kept {
		note("GPU%d: %s %s are kept for pod %s/%s, which is nominated to this node", g.Index, m.amount(&p.Memory), m, p.Namespace, p.Name)
	}
	for _, p := range g.Pods {
		if p.Problem != "" {
			note("pod %s/%s: %s", p.Namespace, p.Name, p.Problem)
		}
		if len(p.Claims) > 0 {
			note("pod %s/%s is also assigned %s, which this node does not offer", p.Namespace, p.Name, uuids(p.Claims))
		}
	}
}

func (o TableOptions) waiting(out *bytes.Buffer, r inspect.Report) {
	if out.Len() > 0 {
		fmt.Fprintln(out)
	}
	unit := r.UnitMiB()
	m := measureFor(inspect.Node{UnitMiB: unit})
	withCores := false
	for _, p := range r.Waiting {
		withCores = withCores || p.Cores > 0
	}
	g := newGrid(out)
	if !o.NoHeaders {
		fmt.Fprintln(out, "Pods that wait for a node:")
		header := []string{"NAMESPACE", "NAME", fmt.Sprintf("GPU-MEMORY(%s)", m), "GPUS"}
		if withCores {
			header = append(header, "GPU-CORE(%)")
		}
		g.row(append(header, "REASON")...)
	}
	for _, p := range r.WaitingAlike() {
		if p.Count > 1 {
			p.Name = many(p.Count, p.Owner)
		}
		need := p.Needs(unit)
		amount, gpus, percent := m.amount(&need), fmt.Sprint(p.GPUs), cores(p.Cores)
		if p.GPUs == 0 {
			amount, gpus, percent = unknown, unknown, unknown
		}
		cells := []string{p.Namespace, p.Name, amount, gpus}
		if withCores {
			cells = append(cells, percent)
		}
		g.row(append(cells, p.Why())...)
	}
	g.flush()
}

func usesCores(n inspect.Node) bool {
	for _, g := range n.GPUs {
		if g.RequestedCores > 0 {
			return true
		}
	}
	for _, p := range n.Unattributed {
		if p.Cores > 0 {
			return true
		}
	}
	return false
}

func hasPods(n inspect.Node) bool {
	if len(n.Unattributed) > 0 {
		return true
	}
	for _, g := range n.GPUs {
		if len(g.Pods) > 0 {
			return true
		}
	}
	return false
}
