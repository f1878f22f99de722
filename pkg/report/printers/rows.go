package printers

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// UsageKey identifies a measured object: a GPU by its UUID, or a pod by namespace/name, on a node.
type UsageKey struct {
	Node, Name string
}

// Usage is the measured memory of a GPU or of a pod, in MiB.
type Usage struct {
	UsedMiB int64  `json:"usedMiB"`
	PeakMiB *int64 `json:"peakMiB,omitempty"`   // the maximum since the container started
	SM      *int   `json:"smPercent,omitempty"` // of a pod: per cent of one GPU's time, summed over the pod's GPUs; nil if unknown
}

// GPURow is a row of a list of GPUs.
type GPURow struct {
	Node string `json:"node"`
	inspect.GPU
	Usage *Usage `json:"usage,omitempty"` // nil if unknown

	pending *inspect.Memory // memory of the node's pods on unknown GPUs; nil if there are no such pods
	closed  string          // why its node takes no new pods
	taint   string          // key of its node's taint, which pods must tolerate
}

// PodRow is a row of a list of pods.
type PodRow struct {
	Namespace       string         `json:"namespace"`
	Name            string         `json:"name"`
	UID             string         `json:"uid,omitempty"`
	Node            string         `json:"node,omitempty"` // empty for a waiting pod, unless the pod is nominated to a node
	GPUs            []int          `json:"gpus"`           // by index; empty if unknown
	UUIDs           []gpu.UUID     `json:"uuids,omitempty"`
	Granted         inspect.Memory `json:"granted,omitzero"`  // summed over its GPUs; zero for a waiting pod
	RequestedMemory inspect.Memory `json:"waitsFor,omitzero"` // the request of a waiting pod; zero if unreadable
	Cores           int            `json:"cores,omitempty"`
	Usage           *Usage         `json:"usage,omitempty"` // nil if unknown
	Enforcement     string         `json:"enforcement,omitempty"`
	State           string         `json:"state"`
	Reason          string         `json:"reason,omitempty"` // why the pod waits, or its fault
	Owner           string         `json:"owner,omitempty"`  // controller of a waiting pod, as KIND/NAME
	Created         time.Time      `json:"created,omitzero"` // of a waiting pod; zero if unknown
}

// GroupWaiting merges the waiting pods of a controller that have the same request and reason into one
// row: "40 × Job/burst".
func GroupWaiting(rows []PodRow) (groups []PodRow) {
	for _, same := range inspect.Alike(rows, func(p PodRow) string {
		if p.Owner == "" || p.State != Waiting {
			return p.Namespace + "/" + p.Name + "/" + p.UID
		}
		return fmt.Sprintf("%s\x00%s\x00%d\x00%t\x00%d\x00%s", p.Namespace, p.Owner, p.RequestedMemory.Units, p.RequestedMemory.InShares, p.Cores, p.Reason)
	}) {
		same[0].Name = nameOfGroup(len(same), same[0].Name, same[0].Owner)
		groups = append(groups, same[0])
	}
	return groups
}

// nameOfGroup returns the name of a single pod, or the number of pods and their controller.
func nameOfGroup(pods int, name, owner string) string {
	if pods == 1 {
		return name
	}
	return fmt.Sprintf("%d × %s", pods, owner)
}

// States of pods without a node.
const (
	Waiting   = "Waiting"
	Nominated = "Nominated" // kube-scheduler has chosen a node for the pod, and evicts pods there
)

// Ended is the state, in a watch, of a pod that is gone or has released its GPU memory.
const Ended = "Ended"

// EndRow returns the pod's last row in a watch.
func (p PodRow) EndRow() PodRow {
	return PodRow{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Node: p.Node, GPUs: p.GPUs, UUIDs: p.UUIDs, State: Ended}
}

// holdsMemory reports whether the pod has GPU memory.
func (p PodRow) holdsMemory() bool { return !p.IsWaiting() && p.State != Ended }

// IsWaiting reports whether the pod has no node yet.
func (p PodRow) IsWaiting() bool { return p.State == Waiting || p.State == Nominated }

// GPURows returns a row for each GPU of a report, by node and index.
func GPURows(r inspect.Report, usage map[UsageKey]Usage) (rows []GPURow) {
	for _, n := range r.Nodes {
		for _, g := range n.GPUs {
			row := GPURow{Node: n.Name, GPU: g, pending: n.UnattributedMemory, closed: n.Closed, taint: n.Taint}
			if u, ok := usage[UsageKey{n.Name, string(g.UUID)}]; ok {
				row.Usage = &u
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// PodRows returns a row for each pod of a report, including waiting pods, by namespace and name. In the
// keys of parameter usage, Name is the pod as namespace/name.
func PodRows(r inspect.Report, usage map[UsageKey]Usage) (rows []PodRow) {
	rowIndex := make(map[string]int)
	addPod := func(n inspect.Node, p inspect.Pod, g *inspect.GPU) {
		key := p.Namespace + "/" + p.Name + "/" + p.UID
		i, ok := rowIndex[key]
		if !ok {
			i = len(rows)
			rowIndex[key] = i
			rows = append(rows, PodRow{
				Namespace: p.Namespace, Name: p.Name, UID: p.UID, Node: n.Name, GPUs: []int{},
				Enforcement: p.Enforcement, State: p.State, Reason: p.Problem,
			})
			if u, ok := usage[UsageKey{n.Name, p.Namespace + "/" + p.Name}]; ok {
				rows[i].Usage = &u
			}
		}
		add(&rows[i].Granted, &p.Memory)
		rows[i].Cores += p.Cores
		if g != nil {
			rows[i].GPUs = append(rows[i].GPUs, g.Index)
			rows[i].UUIDs = append(rows[i].UUIDs, g.UUID)
		}
	}
	for _, n := range r.Nodes {
		for i := range n.GPUs {
			for _, p := range n.GPUs[i].Pods {
				addPod(n, p, &n.GPUs[i])
			}
		}
		for _, p := range n.Unattributed {
			addPod(n, p, nil)
		}
	}
	unit := r.UnitMiB()
	for _, w := range r.Waiting {
		row := PodRow{
			Namespace: w.Namespace, Name: w.Name, UID: w.UID, GPUs: []int{}, State: Waiting, Cores: w.Cores, Reason: w.Explain(), Owner: w.Owner, Created: w.Created,
			RequestedMemory: w.RequestedMemory(unit),
		}
		if w.Nominated != "" {
			row.State, row.Node = Nominated, w.Nominated
			row.GPUs, row.UUIDs = nominatedGPUs(r, w)
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows, func(a, b PodRow) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return rows
}

// nominatedGPUs returns the GPUs with memory that is reserved for a nominated pod.
func nominatedGPUs(r inspect.Report, w inspect.WaitingPod) (indexes []int, ids []gpu.UUID) {
	indexes = []int{}
	for _, n := range r.Nodes {
		for _, g := range n.GPUs {
			if slices.ContainsFunc(g.NominatedPods, func(p inspect.Pod) bool { return p.UID == w.UID }) {
				indexes, ids = append(indexes, g.Index), append(ids, g.UUID)
			}
		}
	}
	return indexes, ids
}

// GPUColumns returns the columns of a list of GPUs.
func GPUColumns(r inspect.Report) []table.Column[GPURow] {
	m := measureOf(r.Nodes)
	return []table.Column[GPURow]{
		{Header: "NODE", Cell: func(g GPURow) string { return g.Node }},
		{Header: "GPU", Cell: func(g GPURow) string { return strconv.Itoa(g.Index) }},
		{Header: "MODEL", Omit: 4, Cell: func(g GPURow) string { return g.Model }},
		{
			Header: fmt.Sprintf("ALLOCATED/TOTAL(%s)", m),
			Cell: func(g GPURow) string {
				return m.ratio(g.Requested, g.Capacity) + nominatedCell(m, g.GPU)
			},
			Share:  func(g GPURow) (part, whole float64) { return allocationShare(g.Requested, g.Capacity) },
			Colour: func(g GPURow) table.Colour { return allocationColour(g.Requested, g.Capacity) },
			Notes:  []table.Note[GPURow]{{Text: notListedNote, About: isUncounted}},
		},
		{Header: fmt.Sprintf("FREE(%s)", m), Omit: 1, Cell: func(g GPURow) string { return freeCell(m, g) }, Notes: []table.Note[GPURow]{
			{Text: notListedNote, About: isUncounted},
			{Text: sharesNote, About: func(g GPURow) bool { return g.Capacity.InShares }},
		}},
		{Header: fmt.Sprintf("USED(%s)", m), Omit: 2, Cell: func(g GPURow) string { return m.used(g.Usage) }, Notes: []table.Note[GPURow]{
			{Text: "? is unknown: the device plugin of the node could not be read.", About: func(g GPURow) bool { return g.Usage == nil }},
		}},
		{Header: "PODS", Omit: 3, Cell: gpuPodsCell, Notes: []table.Note[GPURow]{
			{Text: notListedNote, About: isUncounted},
			{Text: "PODS counts only pods of namespace " + table.Clean(r.Namespace) + ".", About: func(GPURow) bool { return r.Namespace != "" }},
		}},
		{Header: "GPU-CORE(%)", Omit: 5, Hidden: !showsCores(r), Cell: func(g GPURow) string { return coresOfGPU(g.GPU) }},
		{
			Header: "HEALTH", Cut: true,
			Cell: func(g GPURow) string {
				cell := health(g.GPU)
				switch {
				case g.Status.OnlyCordoned():
					cell = strings.TrimSpace(cell + " " + g.Cordon)
				case !g.Healthy:
					cell += ": " + g.Unhealthy
				}
				switch {
				case g.closed != "":
					return cell + "; " + g.closed
				case g.taint != "":
					return cell + "; for pods that tolerate taint " + g.taint
				default:
					return cell
				}
			},
			Colour: func(g GPURow) table.Colour {
				switch {
				case g.Healthy && g.closed == "":
					return table.Plain
				case g.Healthy, g.Status.OnlyCordoned():
					return table.Yellow
				default:
					return table.Red
				}
			},
		},
		{Header: "UUID", Wide: true, Cell: func(g GPURow) string { return string(g.UUID) }},
		{Header: "PCI", Wide: true, Cell: func(g GPURow) string { return g.PCI }},
		{Header: "MEMORY(MiB)", Wide: true, Cell: func(g GPURow) string { return fmt.Sprint(g.MemoryMiB) }},
	}
}

// isUncounted reports whether the allocated memory of a GPU is unknown.
func isUncounted(g GPURow) bool { return g.Requested == nil }

func coresOfGPU(g inspect.GPU) string {
	return fmt.Sprintf("%d/%d", g.RequestedCores, gpu.CoresPerDevice)
}

// showsCores reports whether a node offers cores, or a pod has or requests cores.
func showsCores(r inspect.Report) bool {
	return slices.ContainsFunc(r.Nodes, func(n inspect.Node) bool { return n.Cores || usesCores(n) }) ||
		slices.ContainsFunc(r.Waiting, func(w inspect.WaitingPod) bool { return w.Cores > 0 })
}

// PodColumns returns the columns of a list of pods. If parameter allWait is set, all pods wait: PodColumns
// hides the columns that would be empty, and shows columns that other lists show only with -o wide.
func PodColumns(r inspect.Report, allWait bool) []table.Column[PodRow] {
	m, wide := measureOf(r.Nodes), !allWait
	stateOmit := 0
	if allWait {
		stateOmit = 3
	}
	return []table.Column[PodRow]{
		{Header: "NAMESPACE", Cell: func(p PodRow) string { return p.Namespace }},
		{Header: "NAME", Cell: func(p PodRow) string { return p.Name }},
		{Header: "NODE", Hidden: allWait && !nominated(r), Cell: func(p PodRow) string { return p.Node }},
		{Header: "GPU", Hidden: allWait && !nominated(r), Cell: func(p PodRow) string { return numbers(p.GPUs) }},
		{Header: fmt.Sprintf("ALLOCATED(%s)", m), Hidden: allWait, Cell: func(p PodRow) string {
			if !p.holdsMemory() {
				return ""
			}
			return m.amount(&p.Granted)
		}, Notes: allocatedNotes()},
		{Header: fmt.Sprintf("USED(%s)", m), Omit: 1, Hidden: allWait, Colour: usageColour, Cell: func(p PodRow) string {
			if !p.holdsMemory() {
				return ""
			}
			return m.used(p.Usage)
		}, Notes: usedNotes()},
		{Header: "ENFORCEMENT", Wide: true, Hidden: allWait, Cell: func(p PodRow) string { return p.Enforcement }},
		{Header: "STATE", Omit: stateOmit, Cell: func(p PodRow) string { return p.State }, Colour: func(p PodRow) table.Colour {
			if p.IsWaiting() {
				return table.Yellow
			}
			return table.Plain
		}},
		{Header: "AGE", Omit: 2, Ages: true, Hidden: !allWait, Cell: func(p PodRow) string { return Age(p.Created) }},
		{Header: "GPU-CORE(%)", Omit: 2, Hidden: !showsCores(r), Cell: func(p PodRow) string { return cores(p.Cores) }},
		{Header: "GPU-UUID", Wide: true, Hidden: allWait, Cell: func(p PodRow) string { return uuids(p.UUIDs) }},
		{Header: fmt.Sprintf("WAITS-FOR(%s)", m), Omit: 1, Wide: wide, Cell: func(p PodRow) string {
			switch {
			case !p.IsWaiting():
				return ""
			case p.RequestedMemory.Units == 0:
				return absent // the request cannot be read
			default:
				return m.amount(&p.RequestedMemory)
			}
		}, Notes: []table.Note[PodRow]{
			{Text: unitsNote, About: func(p PodRow) bool { return unsized(p.RequestedMemory) }},
			{Text: sharesNote, About: func(p PodRow) bool { return p.RequestedMemory.InShares }},
		}},
		{Header: "REASON", Cut: true, Wide: wide, Cell: func(p PodRow) string { return p.Reason }}, // last, because it is long
	}
}

// nominated reports whether a waiting pod is nominated to a node.
func nominated(r inspect.Report) bool {
	return slices.ContainsFunc(r.Waiting, func(w inspect.WaitingPod) bool { return w.Nominated != "" })
}

// allocatedNotes returns the legend of a column of allocated memory.
func allocatedNotes() []table.Note[PodRow] {
	return []table.Note[PodRow]{
		{Text: unitsNote, About: func(p PodRow) bool { return unsized(p.Granted) }},
		{Text: sharesNote, About: func(p PodRow) bool { return p.Granted.InShares }},
	}
}

// usedNotes returns the legend of a column of used memory.
func usedNotes() []table.Note[PodRow] {
	return []table.Note[PodRow]{{Text: notMeasuredNote, About: func(p PodRow) bool { return p.Usage == nil && !p.IsWaiting() }}}
}

// TopColumns returns the columns of a list of pods by usage.
func TopColumns() []table.Column[PodRow] {
	ofAllocated := func(p PodRow) (part, whole float64) {
		if p.Usage == nil {
			return 0, 0
		}
		return float64(p.Usage.UsedMiB), float64(p.Granted.MiB)
	}
	return []table.Column[PodRow]{
		{Header: "NAMESPACE", Cell: func(p PodRow) string { return p.Namespace }},
		{Header: "NAME", Cell: func(p PodRow) string { return p.Name }},
		{Header: "NODE", Wide: true, Cell: func(p PodRow) string { return p.Node }},
		{Header: "GPU", Wide: true, Cell: func(p PodRow) string { return numbers(p.GPUs) }},
		{Header: "ALLOCATED(MiB)", Cell: func(p PodRow) string { return inMiB.amount(&p.Granted) }, Notes: allocatedNotes()},
		{Header: "USED(MiB)", Colour: usageColour, Share: ofAllocated, Cell: func(p PodRow) string { return inMiB.used(p.Usage) }, Notes: usedNotes()},
		{Header: "USED(%)", Wide: true, Cell: func(p PodRow) string {
			if p.Usage == nil {
				return "?"
			}
			return percent(&p.Usage.UsedMiB, p.Granted.MiB)
		}},
		{Header: "PEAK(MiB)", Omit: 1, Cell: func(p PodRow) string {
			if p.Usage == nil {
				return "?"
			}
			return inMiB.mib(p.Usage.PeakMiB)
		}},
		{Header: "SM(%)", Omit: 2, Cell: func(p PodRow) string {
			if p.Usage == nil || p.Usage.SM == nil {
				return "?"
			}
			return fmt.Sprintf("%d%%", *p.Usage.SM)
		}, Notes: []table.Note[PodRow]{{
			Text:  "SM(%) is ? if NVML does not report it: in MIG mode, for an idle client of MPS,\nor if the GPU, the driver or the device plugin is too old.",
			About: func(p PodRow) bool { return p.Usage != nil && p.Usage.SM == nil },
		}}},
		{Header: "HINT", Cell: func(p PodRow) string {
			if n := Advised(p.Granted, p.Usage); n > 0 {
				return fmt.Sprintf("ask for %d", n)
			}
			return ""
		}},
	}
}

// headroom is the ratio of an advised request to the peak usage.
const headroom = 1.2

// Advised returns the number of units that a pod should request, according to its peak usage. It returns
// 0 if the peak is unknown or the present request is right.
func Advised(granted inspect.Memory, u *Usage) int64 {
	if u == nil || u.PeakMiB == nil || granted.Units == 0 || granted.MiB == 0 {
		return 0
	}
	unit := granted.MiB / int64(granted.Units)
	enough := int64(float64(*u.PeakMiB)*headroom)/unit + 1
	if *u.PeakMiB > granted.MiB || enough < int64(granted.Units) {
		return enough
	}
	return 0
}

func usageColour(p PodRow) table.Colour {
	if p.Usage == nil {
		return table.Plain
	}
	return table.Load(float64(p.Usage.UsedMiB), float64(p.Granted.MiB))
}

func allocationShare(requested *inspect.Memory, capacity inspect.Memory) (part, whole float64) {
	if requested == nil {
		return 0, 0
	}
	return float64(requested.Units), float64(capacity.Units)
}

func allocationColour(requested *inspect.Memory, capacity inspect.Memory) table.Colour {
	return table.Load(allocationShare(requested, capacity))
}

// gpuPodsCell returns the number of listed pods on a GPU.
func gpuPodsCell(g GPURow) string {
	if g.PodCount == nil {
		return "?"
	}
	return strconv.Itoa(len(g.Pods))
}

func freeCell(m measure, g GPURow) string {
	switch {
	case g.Requested == nil:
		return "?"
	case !g.Status.TakesPods() || g.closed != "" || isExclusive(g.GPU): // no memory, as in the column LARGEST-FREE and in the metrics
		return m.amount(&inspect.Memory{InShares: g.Capacity.InShares})
	}
	taken := nominatedMemory(g.GPU)
	for _, amount := range []*inspect.Memory{g.Requested, g.Foreign, g.pending} {
		add(&taken, amount)
	}
	left := inspect.Memory{Units: max(0, g.Capacity.Units-taken.Units), MiB: max(0, g.Capacity.MiB-taken.MiB), InShares: g.Capacity.InShares}
	return m.amount(&left)
}

const notMeasuredNote = "? is unknown: no program of the pod has used a GPU, or the device plugin of\nits node could not be read."

func numbers(values []int) string {
	var out []string
	for _, n := range values {
		out = append(out, strconv.Itoa(n))
	}
	return strings.Join(out, ",")
}
