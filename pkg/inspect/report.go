package inspect

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

// APIVersion and Kind mark the JSON form of a report.
const (
	APIVersion = "inspect.gpumem.dev/v1"
	Kind       = "Report"
)

// fallback is the policy by which nominated pods that name none are taken to
// choose their GPU. That of the extender is not known here.
const fallback = placement.Binpack

// Report is who holds what on the GPUs of a cluster, or of some of its nodes.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Resource   string `json:"resource"` // the extended resource that is counted in units

	Nodes            []Node    `json:"nodes"`                 // by name
	WithoutInventory int       `json:"nodesWithoutInventory"` // nodes that offer nothing and hold nothing: not in Nodes
	Total            Total     `json:"total"`                 // of Nodes
	Selected         bool      `json:"selected,omitempty"`    // Nodes are not all of the cluster
	Namespace        string    `json:"namespace,omitempty"`   // pods of others are left out, though they count
	RequestedUnknown bool      `json:"requestedUnknown"`      // the pods could not be listed
	Waiting          []Wait    `json:"waiting"`               // pods on no node yet, by namespace and name
	Problems         []Problem `json:"problems,omitempty"`    // what could not be read
}

// Total is the sum over nodes whose unit is known.
type Total struct {
	CapacityMiB  int64  `json:"capacityMiB"`
	RequestedMiB *int64 `json:"requestedMiB,omitempty"` // nil when unknown
}

// Memory is an amount of GPU memory.
type Memory struct {
	Units gpu.Units `json:"units"`
	MiB   int64     `json:"MiB"` // 0 when the node's unit is not known
}

// Node is one node with its GPUs.
type Node struct {
	Name          string          `json:"name"`
	Address       string          `json:"address,omitempty"`
	Status        string          `json:"status,omitempty"` // as kubectl prints it, for example "Ready,SchedulingDisabled"
	UnitMiB       int64           `json:"unitMiB"`          // 0 when not known
	DriverVersion string          `json:"driverVersion,omitempty"`
	Enforcement   gpu.Enforcement `json:"enforcement,omitempty"`
	Weaker        string          `json:"weaker,omitempty"` // why the enforcement is no stronger

	Capacity  Memory  `json:"capacity"`
	Requested *Memory `json:"requested,omitempty"` // pods on no known GPU included; nil when unknown
	GPUs      []GPU   `json:"gpus"`                // by index

	PodCount    int     `json:"podCount"`              // of all namespaces
	LargestFree *Memory `json:"largestFree,omitempty"` // what one more pod could get of one GPU; nil when unknown

	// Unattributed are pods on this node that no GPU is known of. For new pods
	// they count on each GPU until the device plugin has placed them.
	Unattributed       []Pod   `json:"unattributed"`
	UnattributedMemory *Memory `json:"unattributedMemory,omitempty"` // nil when there are none

	Problem string `json:"problem,omitempty"` // why its inventory could not be read
}

// GPU is one GPU with the pods on it.
type GPU struct {
	Index             int      `json:"index"`
	UUID              gpu.UUID `json:"uuid"`
	Model             string   `json:"model,omitempty"`
	MemoryMiB         int64    `json:"memoryMiB"` // all of it, the driver's share included
	PCI               string   `json:"pci,omitempty"`
	NUMANode          *int     `json:"numaNode,omitempty"`
	ComputeCapability string   `json:"computeCapability,omitempty"`
	Speed             int      `json:"speed,omitempty"` // relative to an A100, which has 100
	NVLinks           []NVLink `json:"nvlinks,omitempty"`
	Healthy           bool     `json:"healthy"`
	Unhealthy         string   `json:"unhealthy,omitempty"`

	Capacity       Memory  `json:"capacity"`
	Foreign        *Memory `json:"foreign,omitempty"`        // of it, used by programs that were granted none
	Requested      *Memory `json:"requested,omitempty"`      // nil when unknown
	RequestedCores int     `json:"requestedCores,omitempty"` // per cent
	Pods           []Pod   `json:"pods"`
	Kept           []Pod   `json:"kept,omitempty"` // that are nominated to the node: they hold nothing yet, and those of their priority or a lower one do not get it
}

// NVLink is what joins a GPU to another of its node.
type NVLink struct {
	GPU   int `json:"gpu"` // index of the other
	Lanes int `json:"lanes"`
}

// Pod is what one pod holds of one GPU, or of its node when it is on no known GPU.
type Pod struct {
	Namespace   string     `json:"namespace"`
	Name        string     `json:"name"`
	UID         string     `json:"uid,omitempty"`
	Memory      Memory     `json:"memory"`
	Cores       int        `json:"cores,omitempty"`  // per cent
	Claims      []gpu.UUID `json:"claims,omitempty"` // GPUs that its annotation names and its node lacks
	State       string     `json:"state,omitempty"`
	Enforcement string     `json:"enforcement,omitempty"`
	Problem     string     `json:"problem,omitempty"` // what of it could not be read
}

// Wait is a pod that is bound to no node.
type Wait struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid,omitempty"`
	Units     gpu.Units `json:"units"` // of all its GPUs together
	GPUs      int       `json:"gpus"`
	Cores     int       `json:"cores,omitempty"`
	Nominated string    `json:"nominated,omitempty"` // the node where others leave for it
	Node      string    `json:"node,omitempty"`      // where it fits, or comes closest
	Fits      bool      `json:"fits"`
	Reason    string    `json:"reason"`
}

// Problem is an object of which something could not be read.
type Problem struct {
	Object  string `json:"object"` // for example "node gpu-a"
	Message string `json:"message"`
}

// Facts are what the API server says beside what placement.Node knows.
type Facts struct {
	Resource    string
	Nodes       map[string]NodeFacts // by name
	Pods        map[string]PodFacts  // by UID, of bound pods
	Waiting     []WaitFacts
	PodsUnknown bool // the pods could not be listed
	Selected    bool // the nodes are not all of the cluster
	Problems    []Problem
}

// NodeFacts are the facts of one node.
type NodeFacts struct {
	Address       string
	Status        string
	Unschedulable bool   // takes no new pods, whatever is free
	Wanted        bool   // named by the user: shown even when it offers nothing
	Problem       string // why the inventory could not be read
}

// PodFacts are the facts of one bound pod.
type PodFacts struct {
	State       string // Running, Terminating, Pending or Unknown
	Enforcement string // the level that it really has
	Problem     string // what could not be read of it
}

// WaitFacts is a pod that is bound to no node.
type WaitFacts struct {
	Pod       placement.PodRef
	Request   placement.Request
	Nominated string // the node where others leave for it
	Problem   string // why the request could not be read
}

// New makes a report. The nodes are expected by name, as cache.Cache gives them.
func New(nodes []placement.Node, facts Facts) Report {
	r := Report{
		APIVersion: APIVersion, Kind: Kind, Resource: facts.Resource,
		Nodes: []Node{}, Waiting: []Wait{},
		Selected: facts.Selected, RequestedUnknown: facts.PodsUnknown, Problems: facts.Problems,
	}
	var requested int64
	for _, n := range nodes {
		f := facts.Nodes[n.Name]
		if len(n.Devices) == 0 && len(n.Unattributed) == 0 && f.Problem == "" && !f.Wanted {
			r.WithoutInventory++
			continue
		}
		out := newNode(n, f, facts)
		r.Total.CapacityMiB += out.Capacity.MiB
		if out.Requested != nil {
			requested += out.Requested.MiB
		}
		r.Nodes = append(r.Nodes, out)
	}
	if !facts.PodsUnknown {
		r.Total.RequestedMiB = &requested
	}
	r.Waiting = waiting(nodes, facts)
	return r
}

func newNode(n placement.Node, f NodeFacts, facts Facts) Node {
	memory := func(u gpu.Units) Memory { return Memory{Units: u, MiB: int64(u) * n.UnitMiB} }
	requested := func(u gpu.Units) *Memory {
		if facts.PodsUnknown {
			return nil
		}
		m := memory(u)
		return &m
	}
	out := Node{
		Name: n.Name, Address: f.Address, Status: f.Status, Problem: f.Problem,
		UnitMiB: n.UnitMiB, DriverVersion: n.DriverVersion,
		Capacity: memory(n.Capacity()), Requested: requested(n.Requested()), GPUs: []GPU{}, Unattributed: []Pod{},
	}
	if len(n.Devices) > 0 {
		out.Enforcement, out.Weaker = cmp.Or(n.Enforcement, gpu.EnforcementAdvisory), n.Weaker
	}
	if !facts.PodsUnknown {
		largest := memory(n.LargestFree())
		out.LargestFree = &largest
	}
	counted := make(map[string]bool)
	has := make(map[gpu.UUID]bool, len(n.Devices))
	for _, d := range n.Devices {
		has[d.UUID] = true
	}
	pod := func(h placement.Holding, m Memory, cores int) Pod {
		pf := facts.Pods[h.Pod.UID]
		p := Pod{
			Namespace: h.Pod.Namespace, Name: h.Pod.Name, UID: h.Pod.UID, Memory: m, Cores: cores,
			State: pf.State, Enforcement: pf.Enforcement, Problem: pf.Problem,
		}
		for _, s := range h.Assignment.Shares {
			if !has[s.Device] {
				p.Claims = append(p.Claims, s.Device)
			}
		}
		return p
	}
	promised := n.Promised(fallback)
	for i, d := range n.Devices {
		g := GPU{
			Index: d.Index, UUID: d.UUID, Model: d.Model, MemoryMiB: d.MemoryMiB,
			PCI: d.PCI, ComputeCapability: d.ComputeCapability, Speed: d.Speed, NVLinks: nvlinks(n, d.UUID), Healthy: d.Healthy, Unhealthy: d.Unhealthy,
			Capacity: memory(d.Capacity), Requested: requested(d.Requested), RequestedCores: d.RequestedCores,
			Pods: []Pod{},
		}
		if d.Foreign > 0 {
			foreign := memory(d.Foreign)
			g.Foreign = &foreign
		}
		if d.NUMANode >= 0 {
			g.NUMANode = &d.NUMANode
		}
		for _, h := range d.Pods {
			counted[h.Pod.UID] = true
			for _, s := range h.Assignment.Shares {
				if s.Device == d.UUID {
					g.Pods = append(g.Pods, pod(h, memory(s.Units), s.Cores))
				}
			}
		}
		for _, h := range promised.Devices[i].Pods {
			if units, cores := h.Request.Share(); h.Nominated {
				g.Kept = append(g.Kept, pod(h, memory(units), cores))
			}
		}
		out.GPUs = append(out.GPUs, g)
	}
	var unattributed gpu.Units
	for _, h := range n.Unattributed {
		unattributed += h.Request.Units()
		out.Unattributed = append(out.Unattributed, pod(h, memory(h.Request.Units()), h.Request.Cores()))
	}
	out.PodCount = len(counted) + len(n.Unattributed)
	if len(n.Unattributed) > 0 {
		pending := memory(unattributed)
		out.UnattributedMemory = &pending
	}
	return out
}

// nvlinks returns what joins a GPU to others, by their indexes.
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

// waiting says of each pod without a node where it fits, or comes closest.
func waiting(nodes []placement.Node, facts Facts) []Wait {
	open := slices.DeleteFunc(slices.Clone(nodes), func(n placement.Node) bool {
		return len(n.Devices) == 0 || facts.Nodes[n.Name].Unschedulable
	})
	answers := make(map[string]placement.Verdict)
	out := make([]Wait, 0, len(facts.Waiting))
	for _, f := range facts.Waiting {
		w := Wait{Namespace: f.Pod.Namespace, Name: f.Pod.Name, UID: f.Pod.UID, Nominated: f.Nominated, Reason: f.Problem}
		if f.Problem == "" {
			w.Units, w.GPUs, w.Cores = f.Request.Units(), f.Request.GPUs(), f.Request.Cores()
			key := fmt.Sprintf("%+v", f.Request)
			if f.Nominated != "" {
				key += f.Pod.UID // what is kept for it is its own
			}
			best, ok := answers[key]
			if !ok {
				best = closest(f.Pod, f.Request, open)
				answers[key] = best
			}
			w.Node, w.Fits, w.Reason = best.Node.Name, best.Fits(), best.String()
			if w.Node == "" {
				w.Reason = "no node that takes new pods offers GPU memory"
			}
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// closest returns the verdict of the first node on which the request fits, or
// else of the one that it got furthest with: whose reason can change most, and
// among equals the one with most free on a single GPU. Without nodes, it is
// that of a node without a name.
func closest(pod placement.PodRef, req placement.Request, nodes []placement.Node) placement.Verdict {
	best, mostFree := placement.Fit(req, placement.Node{}), int64(0)
	for _, n := range nodes {
		v := placement.Fit(req, n.Reserved(pod, req, fallback))
		if v.Fits() {
			return v
		}
		free := int64(n.LargestFree()) * n.UnitMiB
		if c := cmp.Compare(v.Reason, best.Reason); c > 0 || c == 0 && free > mostFree {
			best, mostFree = v, free
		}
	}
	return best
}

// InNamespace returns the report with the pods of one namespace only. What
// pods of others hold still counts.
func (r Report) InNamespace(namespace string) Report {
	of := func(pods []Pod) []Pod {
		out := []Pod{}
		for _, p := range pods {
			if p.Namespace == namespace {
				out = append(out, p)
			}
		}
		return out
	}
	r.Namespace = namespace
	r.Nodes = slices.Clone(r.Nodes)
	for i := range r.Nodes {
		n := &r.Nodes[i]
		n.Unattributed = of(n.Unattributed)
		n.GPUs = slices.Clone(n.GPUs)
		for j := range n.GPUs {
			n.GPUs[j].Pods = of(n.GPUs[j].Pods)
			if n.GPUs[j].Kept != nil {
				n.GPUs[j].Kept = of(n.GPUs[j].Kept)
			}
		}
	}
	r.Waiting = slices.DeleteFunc(slices.Clone(r.Waiting), func(w Wait) bool { return w.Namespace != namespace })
	return r
}
