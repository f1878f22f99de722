package inspect

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// New builds a report. The nodes must be sorted by name, as cache.Cache returns them.
func New(nodes []placement.Node, facts Facts) Report {
	r := Report{
		APIVersion: APIVersion, Kind: Kind, Resource: facts.Resource,
		Nodes: []Node{}, Waiting: waiting(nodes, facts),
		Selected: facts.Selected, RequestedUnknown: facts.PodsUnknown, Problems: facts.Problems,
	}
	for _, n := range nodes {
		f := facts.Nodes[n.Name]
		if len(n.Devices) == 0 && len(n.Unattributed) == 0 && f.Problem == "" && !f.NamedByUser {
			r.WithoutInventory++
			continue
		}
		r.Nodes = append(r.Nodes, reporter{n, facts}.node(f))
	}
	r.sum()
	return r
}

// sum computes the total over the nodes.
func (r *Report) sum() {
	var requested int64
	r.Total = Total{}
	for _, n := range r.Nodes {
		r.Total.CapacityMiB += n.Capacity.MiB
		if n.Requested != nil {
			requested += n.Requested.MiB
		}
	}
	if !r.RequestedUnknown {
		r.Total.RequestedMiB = &requested
	}
}

// reporter builds the report of one node.
type reporter struct {
	placement.Node
	facts Facts
}

// memory converts units of the node. A share has the average size of the node's shares, because its GPU
// is unknown.
func (r reporter) memory(u gpu.Units) Memory {
	if !r.InShares() {
		return Memory{Units: u, MiB: int64(u) * r.UnitMiB}
	}
	all := int64(0)
	for _, d := range r.Devices {
		all += d.MiB(d.Allocatable, r.UnitMiB)
	}
	return Memory{Units: u, MiB: int64(u) * all / max(1, int64(r.Allocatable())), InShares: true}
}

// deviceMemory converts units of one device.
func (r reporter) deviceMemory(d placement.Device, u gpu.Units) Memory {
	return Memory{Units: u, MiB: d.MiB(u, r.UnitMiB), InShares: d.InShares()}
}

// requested returns the memory allocated on the node, including the requests of pods on unknown GPUs.
func (r reporter) requested() Memory {
	sum := r.memory(r.UnattributedAmount().Units)
	for _, d := range r.Devices {
		m := r.deviceMemory(d, d.Requested)
		sum.Units, sum.MiB = sum.Units+m.Units, sum.MiB+m.MiB
	}
	return sum
}

// ifPodsKnown returns an amount that depends on the pods; nil if the pods are unknown.
func (r reporter) ifPodsKnown(m Memory) *Memory {
	if r.facts.PodsUnknown {
		return nil
	}
	return &m
}

// podCount returns a number of pods; nil if the pods are unknown.
func (r reporter) podCount(pods int) *int {
	if r.facts.PodsUnknown {
		return nil
	}
	return &pods
}

func (r reporter) node(f NodeFacts) Node {
	out := Node{
		Name: r.Name, Address: f.Address, Status: f.Status, Taint: f.Taint, Withheld: f.Withheld, Problem: f.Problem,
		UnitMiB: r.UnitMiB, DriverVersion: r.DriverVersion,
		Capacity: r.memory(r.Allocatable()), Requested: r.ifPodsKnown(r.requested()), LargestFree: r.ifPodsKnown(r.memory(nearmiss.LargestFree(r.Node))),
		PodCount: r.podCount(len(r.Holdings())), GPUs: []GPU{}, Unattributed: []Pod{},
	}
	if f.Refuses != nil {
		out.LargestFree, out.Closed = r.ifPodsKnown(r.memory(0)), reasons.Refusal(f.Refuses)
	}
	if len(r.Devices) > 0 {
		out.Enforcement, out.Weaker = cmp.Or(r.Enforcement, gpu.EnforcementAdvisory), r.Weaker
		out.Cores = f.RefusesCores == nil
	}
	promised := decide.Promised(r.Node, r.facts.Policy)
	for i, d := range r.Devices {
		out.GPUs = append(out.GPUs, r.gpu(d, promised.Devices[i].Pods, f))
	}
	for _, h := range r.Unattributed {
		out.Unattributed = append(out.Unattributed, r.pod(h, r.memory(h.Request.Units()), h.Request.Cores()))
	}
	if len(r.Unattributed) > 0 {
		m := r.memory(r.UnattributedAmount().Units)
		out.UnattributedMemory = &m
	}
	return out
}

// gpu reports one GPU. Parameter promised has the pods on the GPU, including nominated pods.
func (r reporter) gpu(d placement.Device, promised []*placement.Holding, f NodeFacts) GPU {
	out := GPU{
		Index: d.Index, UUID: d.UUID, Model: d.Model, MemoryMiB: d.MemoryMiB, PCI: d.PCI,
		ComputeCapability: d.ComputeCapability, Speed: d.Speed, NVLinks: nvlinks(r.Node, d.UUID),
		Healthy: d.Status.Open(), Unhealthy: f.Causes(d), Cordon: f.cordon(d), Status: d.Status, Exclusive: r.IsExclusive(d),
		Capacity: r.deviceMemory(d, d.Allocatable), Requested: r.ifPodsKnown(r.deviceMemory(d, d.Requested)), RequestedCores: d.RequestedCores,
		Pods: []Pod{}, PodCount: r.podCount(len(d.Pods)),
	}
	if d.Foreign > 0 {
		foreign := r.deviceMemory(d, d.Foreign)
		out.Foreign = &foreign
	}
	if d.NUMANode >= 0 {
		out.NUMANode = new(d.NUMANode)
	}
	for _, h := range d.Pods {
		if s := h.ShareOn(d.UUID); slices.Contains(h.Devices(), d.UUID) {
			out.Pods = append(out.Pods, r.pod(*h, r.deviceMemory(d, s.Units), s.Cores))
		}
	}
	for _, h := range promised {
		if units, cores := h.Request.Share(); h.Nominated {
			out.NominatedPods = append(out.NominatedPods, r.pod(*h, r.deviceMemory(d, units), cores))
		}
	}
	return out
}

func (r reporter) pod(h placement.Holding, memory Memory, cores int) Pod {
	f := r.facts.Pods[h.Pod.UID]
	memory.InShares = h.Request.InShares // if the user may not read the node, only the request shows whether the units are shares
	out := Pod{
		Namespace: h.Pod.Namespace, Name: h.Pod.Name, UID: h.Pod.UID, Memory: memory, Cores: cores,
		State: f.State, Started: h.Started, Enforcement: f.Enforcement, Problem: f.Problem,
	}
	for _, id := range h.Assignment.Devices() {
		if !slices.ContainsFunc(r.Devices, func(d placement.Device) bool { return d.UUID == id }) {
			out.Claims = append(out.Claims, id)
		}
	}
	return out
}

// nvlinks returns the NVLinks of a GPU, sorted by the index of the other GPU.
func nvlinks(n placement.Node, id gpu.UUID) (out []NVLink) {
	for _, l := range n.Links {
		for _, d := range n.Devices {
			if l.A == id && l.B == d.UUID || l.B == id && l.A == d.UUID {
				out = append(out, NVLink{GPU: d.Index, Lanes: l.Lanes})
			}
		}
	}
	slices.SortFunc(out, func(a, b NVLink) int { return cmp.Compare(a.GPU, b.GPU) })
	return out
}

// waiting returns the pods without a node, each with a node that it fits or the closest node.
func waiting(nodes []placement.Node, facts Facts) []WaitingPod {
	type requestKey struct {
		key      placement.Key
		priority int32
		excluded uintptr // address of ExcludedNodes, which pods with the same constraints share
		uid      string
	}
	results := make(map[requestKey]struct {
		NodeResult
		tainted string
	})
	out := make([]WaitingPod, 0, len(facts.Waiting))
	for _, f := range facts.Waiting {
		w := WaitingPod{Namespace: f.Pod.Namespace, Name: f.Pod.Name, UID: f.Pod.UID, Nominated: f.Nominated, Owner: f.Owner, Created: f.Created, Reason: f.Problem, Unserved: f.Unserved(facts.Schedulers)}
		if f.Problem == "" && !f.Request.Empty() {
			w.Units, w.InShares, w.GPUs, w.Cores = f.Request.Units(), f.Request.InShares, f.Request.GPUs(), f.Request.Cores()
			if facts.PodsUnknown { // then the free memory is unknown too
				w.Reason = cmp.Or(f.LastMessage, "its scheduler has reported no reason")
				out = append(out, w)
				continue
			}
			key := requestKey{key: f.Request.Key(), priority: f.Request.Priority, excluded: reflect.ValueOf(f.ExcludedNodes).Pointer()}
			if f.Nominated != "" {
				key.uid = f.Pod.UID // memory is reserved for this pod alone
			}
			result, ok := results[key]
			if !ok {
				result.NodeResult, result.tainted = facts.bestNode(f, nodes)
				results[key] = result
			}
			w.Node, w.Fits, w.Reason = result.Node.Name, result.IsPlaceable(), result.Explain()
			if result.tainted != "" {
				w.Reason += "; " + result.tainted
			}
			switch {
			case w.Cores > 0 && facts.CoresOff != "":
				w.Node, w.Reason = "", facts.CoresOff
			case w.Node == "":
				w.Reason = "no node offers GPU memory"
			}
		}
		if f.InVain != "" {
			w.Node, w.Fits, w.Reason = "", false, cmp.Or(f.Problem, f.InVain)
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b WaitingPod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return out
}
