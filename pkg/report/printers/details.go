package printers

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Details prints each node with its GPUs and their pods, and then the pods that wait for a node.
func Details(o table.ListOptions) Printer {
	return func(w io.Writer, r inspect.Report) error {
		var out bytes.Buffer
		for i, n := range r.Nodes {
			if i > 0 {
				fmt.Fprintf(&out, "\n%s\n\n", strings.Repeat("-", 72))
			}
			printNode(&out, n, o)
		}
		if len(r.Nodes) > 0 && !o.NoHeaders {
			fmt.Fprintf(&out, "\n%s\n\n%s", strings.Repeat("-", 72), ofCluster(r))
			if r.RequestedUnknown {
				fmt.Fprintln(&out, notListedNote)
			}
			printHiddenNodes(&out, r)
		}
		if len(r.Waiting) > 0 {
			listWaiting(&out, r, o)
		}
		_, err := w.Write(out.Bytes())
		return err
	}
}

// measureFor returns the measure of one node's tables. It does not depend on other nodes' units.
func measureFor(n inspect.Node) measure {
	if n.Capacity.InShares {
		return inShares
	}
	if n.UnitMiB == 0 {
		return inUnits
	}
	return measureOf([]inspect.Node{n})
}

func printNode(out *bytes.Buffer, n inspect.Node, o table.ListOptions) {
	m := measureFor(n)
	facts := [][2]string{{"NAME:", n.Name}, {"ADDRESS:", n.Address}}
	if n.Status != "" {
		facts = append(facts, [2]string{"STATUS:", n.Status})
	}
	if len(n.GPUs) > 0 {
		facts = append(facts, [2]string{"DRIVER:", n.DriverVersion}, [2]string{"ENFORCEMENT:", enforcement(n)})
		if n.UnitMiB != 1024 && !n.Capacity.InShares {
			facts = append(facts, [2]string{"UNIT:", fmt.Sprintf("%d MiB", n.UnitMiB)})
		}
	}
	if n.Problem != "" {
		facts = append(facts, [2]string{"GPU-MEMORY:", fmt.Sprintf("%s/? %s", m.amount(n.Requested), m)}, [2]string{"PROBLEM:", n.Problem})
	} else {
		facts = append(facts, [2]string{"GPU-MEMORY:", fmt.Sprintf("%s %s (%s)", m.ratio(n.Requested, n.Capacity), m, percentOf(n.Requested, n.Capacity))})
	}
	list(out, []table.Column[[2]string]{
		{Cell: func(f [2]string) string { return f[0] }},
		{Cell: func(f [2]string) string { return f[1] }},
	}, facts, table.ListOptions{NoHeaders: true})
	if len(n.GPUs) > 0 {
		fmt.Fprintln(out)
		list(out, gpuColumns(n, m), n.GPUs, o)
	}
	if pods := podsOnGPUs(n); len(pods) > 0 {
		fmt.Fprintln(out)
		list(out, podColumns(n, m), pods, o)
	}
	notes(out, n, m)
}

// enforcement returns the enforcement level of the node, with the reason if a stronger level is unavailable.
func enforcement(n inspect.Node) string {
	if n.Weaker == "" {
		return string(n.Enforcement)
	}
	return fmt.Sprintf("%s (%s)", n.Enforcement, n.Weaker)
}

func gpuColumns(n inspect.Node, m measure) []table.Column[inspect.GPU] {
	return []table.Column[inspect.GPU]{
		{Header: "GPU", Cell: func(g inspect.GPU) string { return fmt.Sprint(g.Index) }},
		{Header: fmt.Sprintf("ALLOCATED/TOTAL(%s)", m), Cell: func(g inspect.GPU) string { return m.ratio(g.Requested, g.Capacity) }},
		{Header: "ALLOCATED", Cell: func(g inspect.GPU) string { return percentOf(g.Requested, g.Capacity) }},
		{Header: "GPU-CORE(%)", Hidden: !usesCores(n), Cell: coresOfGPU},
		{Header: "HEALTH", Cell: health},
		{Header: "UUID", Cell: func(g inspect.GPU) string { return string(g.UUID) }},
		{Header: "PCI", Wide: true, Cell: func(g inspect.GPU) string { return g.PCI }},
		{Header: "NUMA", Wide: true, Cell: func(g inspect.GPU) string {
			if g.NUMANode == nil {
				return ""
			}
			return fmt.Sprint(*g.NUMANode)
		}},
		{Header: "NVLINKS", Wide: true, Cell: func(g inspect.GPU) string { return linked(g.NVLinks) }},
		{Header: "COMPUTE", Wide: true, Cell: func(g inspect.GPU) string { return g.ComputeCapability }},
		{Header: "SPEED", Wide: true, Cell: func(g inspect.GPU) string {
			if g.Speed <= 0 {
				return ""
			}
			return fmt.Sprint(g.Speed)
		}},
		{Header: "MEMORY(MiB)", Wide: true, Cell: func(g inspect.GPU) string { return fmt.Sprint(g.MemoryMiB) }},
		{Header: "MODEL", Cell: func(g inspect.GPU) string { return g.Model }},
	}
}

// linked lists the GPUs at the other end of NVLinks, with the number of links to each: "1×2,3×1".
func linked(links []inspect.NVLink) string {
	var parts []string
	for _, l := range links {
		parts = append(parts, fmt.Sprintf("%d×%d", l.GPU, l.Lanes))
	}
	return strings.Join(parts, ",")
}

// podOnGPU is a row of a node's table of pods: one pod on one GPU.
type podOnGPU struct {
	index, uuids string
	inspect.Pod
}

func podsOnGPUs(n inspect.Node) (rows []podOnGPU) {
	for _, g := range n.GPUs {
		for _, p := range g.Pods {
			rows = append(rows, podOnGPU{fmt.Sprint(g.Index), string(g.UUID), p})
		}
	}
	for _, p := range n.Unattributed {
		rows = append(rows, podOnGPU{unknown, uuids(p.Claims), p})
	}
	return rows
}

func podColumns(n inspect.Node, m measure) []table.Column[podOnGPU] {
	return []table.Column[podOnGPU]{
		{Header: "GPU", Cell: func(p podOnGPU) string { return p.index }},
		{Header: "NAMESPACE", Cell: func(p podOnGPU) string { return p.Namespace }},
		{Header: "NAME", Cell: func(p podOnGPU) string { return p.Name }},
		{Header: fmt.Sprintf("GPU-MEMORY(%s)", m), Cell: func(p podOnGPU) string { return m.amount(&p.Memory) }},
		{Header: "GPU-CORE(%)", Hidden: !usesCores(n), Cell: func(p podOnGPU) string { return cores(p.Cores) }},
		{Header: "STATE", Cell: func(p podOnGPU) string { return p.State }},
		{Header: "ENFORCEMENT", Cell: func(p podOnGPU) string { return cmp.Or(p.Enforcement, unknown) }},
		{Header: "GPU-UUID", Wide: true, Cell: func(p podOnGPU) string { return p.uuids }},
	}
}

// notes prints facts that the tables do not show.
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
			// Without an inventory, the GPUs of all pods are unknown: one note about the node is enough.
		case len(p.Claims) > 0:
			note("pod %s/%s is assigned %s, which this node does not offer", p.Namespace, p.Name, uuids(p.Claims))
		default:
			note("pod %s/%s is assigned no GPU yet", p.Namespace, p.Name)
		}
	}
	if n.Withheld {
		note("The kubelet of this node offers no GPU memory, so new pods get none; kubectl inspect gpumem doctor shows the cause")
	}
	if n.UnattributedMemory != nil && len(n.GPUs) > 0 {
		note("For new pods, the memory of pods with GPU %s counts on every GPU", unknown)
	}
	if len(n.GPUs) == 0 && n.Problem == "" {
		note("The device plugin has reported no GPU of this node")
	}
	if slices.ContainsFunc(n.GPUs, func(g inspect.GPU) bool { return g.Status.ByClaims }) {
		note("The node offers its GPUs by claims, not by the extended resource")
	}
	if hidden := unlisted(n); hidden > 0 {
		note("Pods of other namespaces that are not listed: %d", hidden)
	}
	if len(lines) > 0 {
		fmt.Fprintf(out, "\n* %s\n", strings.Join(lines, "\n* "))
	}
}

// unlisted returns the number of pods that the report leaves out because of their namespace.
func unlisted(n inspect.Node) int {
	if n.PodCount == nil {
		return 0
	}
	return *n.PodCount - listed(n)
}

func health(g inspect.GPU) string {
	switch {
	case isExclusiveShared(g):
		return "Healthy, takes no new pods"
	case isExclusive(g):
		return "Healthy, exclusive"
	case g.Healthy:
		return "Healthy"
	case g.Status.OnlyCordoned():
		return "Cordoned"
	default:
		return "Unhealthy"
	}
}

// noteGPU adds notes about faults of a GPU and its pods.
func noteGPU(note func(format string, args ...any), g inspect.GPU, m measure) {
	switch {
	case g.Status.OnlyCordoned():
		note("GPU%d is %s and takes no new pods until it is uncordoned", g.Index, g.Unhealthy)
	case !g.Healthy:
		note("GPU%d is unhealthy and takes no new pods: %s", g.Index, g.Unhealthy)
	case isExclusiveShared(g):
		note("GPU%d takes no new pods: one of its pods has the policy exclusive, and had another policy when the others were placed", g.Index)
	case isExclusive(g):
		note("GPU%d has one pod alone: the pod's policy is exclusive", g.Index)
	}
	if g.Foreign != nil {
		note("GPU%d: programs without a grant use %s %s, which new pods do not get", g.Index, m.amount(g.Foreign), m)
	}
	if g.Requested != nil && g.Requested.Units > g.Capacity.Units {
		over := inspect.Memory{Units: g.Requested.Units - g.Capacity.Units, MiB: g.Requested.MiB - g.Capacity.MiB, InShares: g.Capacity.InShares}
		note("GPU%d is over-committed by %s %s", g.Index, m.amount(&over), m)
	}
	for _, p := range g.NominatedPods {
		note("GPU%d: %s %s are reserved for pod %s/%s, which is nominated to this node", g.Index, m.amount(&p.Memory), m, p.Namespace, p.Name)
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

func listWaiting(out *bytes.Buffer, r inspect.Report, o table.ListOptions) {
	if out.Len() > 0 {
		fmt.Fprintln(out)
	}
	if !o.NoHeaders {
		fmt.Fprintln(out, "Pods that wait for a node:")
	}
	unit := r.UnitMiB()
	m := measureFor(inspect.Node{UnitMiB: unit})
	known := func(p inspect.WaitGroup, text string) string {
		if p.GPUs == 0 {
			return unknown
		}
		return text
	}
	withCores := slices.ContainsFunc(r.Waiting, func(p inspect.WaitingPod) bool { return p.Cores > 0 })
	list(out, []table.Column[inspect.WaitGroup]{
		{Header: "NAMESPACE", Cell: func(p inspect.WaitGroup) string { return p.Namespace }},
		{Header: "NAME", Cell: func(p inspect.WaitGroup) string { return nameOfGroup(p.Count, p.Name, p.Owner) }},
		{Header: fmt.Sprintf("GPU-MEMORY(%s)", m), Cell: func(p inspect.WaitGroup) string { return known(p, m.amount(new(p.RequestedMemory(unit)))) }},
		{Header: "GPUS", Cell: func(p inspect.WaitGroup) string { return known(p, fmt.Sprint(p.GPUs)) }},
		{Header: "GPU-CORE(%)", Hidden: !withCores, Cell: func(p inspect.WaitGroup) string { return known(p, cores(p.Cores)) }},
		{Header: "REASON", Cell: func(p inspect.WaitGroup) string { return p.Explain() }},
	}, r.WaitingAlike(), o)
}

func usesCores(n inspect.Node) bool {
	return slices.ContainsFunc(n.GPUs, func(g inspect.GPU) bool { return g.RequestedCores > 0 }) ||
		slices.ContainsFunc(n.Unattributed, func(p inspect.Pod) bool { return p.Cores > 0 })
}
