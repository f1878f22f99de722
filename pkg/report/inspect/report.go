package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// APIVersion and Kind mark the JSON form of a report.
const (
	APIVersion = "inspect.gpumem.dev/v1"
	Kind       = "Report"
)

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

	InShares bool `json:"shares,omitempty"` // the units are shares of GPUs, ten to each
}

// Quota is what a ResourceQuota allows the pods of its namespace to ask for.
type Quota struct {
	Name string `json:"name"`
	Used Memory `json:"used"` // by pods that have not ended, on a node or not
	Hard Memory `json:"hard"`
}

// Node is one node with its GPUs.
type Node struct {
	Name          string          `json:"name"`
	Address       string          `json:"address,omitempty"`
	Status        string          `json:"status,omitempty"` // as kubectl prints it, for example "Ready,SchedulingDisabled"
	UnitMiB       int64           `json:"unitMiB"`          // 0 when not known, and where GPUs are offered in shares
	DriverVersion string          `json:"driverVersion,omitempty"`
	Enforcement   gpu.Enforcement `json:"enforcement,omitempty"`
	Weaker        string          `json:"weaker,omitempty"` // why the enforcement is no stronger
	Cores         bool            `json:"cores,omitempty"`  // its GPUs offer cores

	Capacity  Memory  `json:"capacity"`
	Requested *Memory `json:"requested,omitempty"` // pods on no known GPU included; nil when unknown
	GPUs      []GPU   `json:"gpus"`                // by index

	PodCount    *int    `json:"podCount,omitempty"`    // of all namespaces; nil when unknown
	LargestFree *Memory `json:"largestFree,omitempty"` // what one more pod could get of one GPU; nil when unknown

	// Unattributed are pods on this node that no GPU is known of. For new pods
	// they count on each GPU until the device plugin has placed them.
	Unattributed       []Pod   `json:"unattributed"`
	UnattributedMemory *Memory `json:"unattributedMemory,omitempty"` // nil when there are none

	Closed   string `json:"closed,omitempty"`   // why it takes no new pods, whatever is free
	Taint    string `json:"taint,omitempty"`    // what is free is for pods that tolerate it
	Withheld bool   `json:"withheld,omitempty"` // its kubelet offers nothing of it: no new pod gets any
	Problem  string `json:"problem,omitempty"`  // why its inventory could not be read
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
	Healthy           bool     `json:"healthy"`             // it takes new pods
	Unhealthy         string   `json:"unhealthy,omitempty"` // why it takes no new pods, for people
	Cordon            string   `json:"cordon,omitempty"`    // who cordoned it and why, for people: "by alice (its fan is loud)"
	Exclusive         bool     `json:"exclusive,omitempty"` // a pod holds it alone, or may be there and does: no other gets any

	Status gpu.Status `json:"status,omitzero"` // what keeps new pods off, for programs

	Capacity       Memory  `json:"capacity"`
	Foreign        *Memory `json:"foreign,omitempty"`        // of it, used by programs that were granted none
	Requested      *Memory `json:"requested,omitempty"`      // nil when unknown
	RequestedCores int     `json:"requestedCores,omitempty"` // per cent
	Pods           []Pod   `json:"pods"`
	PodCount       *int    `json:"podCount,omitempty"` // of all namespaces; nil when unknown
	Kept           []Pod   `json:"kept,omitempty"`     // that are nominated to the node: they hold nothing yet, and those of their priority or a lower one do not get it
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
	Started     time.Time  `json:"started,omitzero"` // when the kubelet admitted it; zero before
	Enforcement string     `json:"enforcement,omitempty"`
	Problem     string     `json:"problem,omitempty"` // what of it could not be read
}

// Wait is a pod that is bound to no node.
type Wait struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid,omitempty"`
	Units     gpu.Units `json:"units"`            // of all its GPUs together
	InShares  bool      `json:"shares,omitempty"` // these are shares of GPUs
	GPUs      int       `json:"gpus"`
	Cores     int       `json:"cores,omitempty"`
	Nominated string    `json:"nominated,omitempty"` // the node where others leave for it
	Node      string    `json:"node,omitempty"`      // where it fits, or comes closest
	Fits      bool      `json:"fits"`
	Reason    string    `json:"reason"`
	Unserved  string    `json:"unserved,omitempty"` // why no scheduler places it, as far as is known
	Owner     string    `json:"owner,omitempty"`    // its controller, as KIND/NAME
	Created   time.Time `json:"created,omitzero"`   // zero when not known
}

// Why says in a line what the pod waits for.
func (w Wait) Why() string {
	switch {
	case w.Fits:
		return "by GPU memory it fits on " + w.Node + "; " + cmp.Or(w.Unserved, AskEvents)
	case w.Unserved != "":
		return w.comesClosest() + "; " + w.Unserved
	default:
		return w.comesClosest()
	}
}

// AskEvents is said of a pod that fits, where nothing is known that keeps it off.
const AskEvents = "its events show the other reasons"

func (w Wait) comesClosest() string {
	if w.Node == "" {
		return w.Reason
	}
	return w.Node + ": " + w.Reason
}

// Problem is an object that could not be read in part.
type Problem struct {
	Object    string `json:"object"`              // for people, for example "node gpu-a"
	Namespace string `json:"namespace,omitempty"` // that it is in; empty for what is in none
	Message   string `json:"message"`
}

// Facts are what the API server says next to what placement.Node knows.
type Facts struct {
	Resource    string
	Policy      placement.Policy     // the cluster's, of GPUs, for pods that name none
	Nodes       map[string]NodeFacts // by name
	Pods        map[string]PodFacts  // by UID, of bound pods
	Waiting     []WaitFacts
	Schedulers  []string // the names of those that ask gpumem; empty when not known
	CoresOff    string   // why no node takes pods that ask for cores; empty: some may
	PodsUnknown bool     // the pods could not be listed
	WhyUnknown  string   // for people
	Selected    bool     // the nodes are not all of the cluster
	Problems    []Problem
}

// NodeFacts are the facts of one node.
type NodeFacts struct {
	Address  string
	Status   string
	Wanted   bool   // named by the user: shown even when it offers nothing
	Withheld bool   // its kubelet offers nothing of what the inventory has
	Problem  string // why the inventory could not be read

	NotReady     bool                // what is known of its pods may be old
	Refuses      *decide.Refusal     // why it takes no new pods, whatever is free; nil: it does
	RefusesCores *decide.Refusal     // the same of pods that ask for cores
	Cordons      map[gpu.UUID]string // who cordoned GPUs of it and why, where that is known: "by alice (its fan is loud)"
	Taint        string              // the key of one that keeps off pods with GPU memory, unless they say otherwise; empty: there is none
}

// Cordon says who cordoned a GPU of the node and why, where it is cordoned and that is known.
func (f NodeFacts) Cordon(d placement.Device) string {
	if !d.Status.Cordoned {
		return ""
	}
	return f.Cordons[d.UUID]
}

// Causes says what keeps new pods off a GPU of the node, and who does; empty: nothing.
func (f NodeFacts) Causes(d placement.Device) string {
	return strings.TrimSpace(reasons.Causes(d.Status) + " " + f.Cordon(d)) // cordoned is the last of the causes
}

// State says how a GPU of the node is, in the words of package reasons.
func (f NodeFacts) State(d placement.Device) string {
	if d.Status.OnlyCordoned() {
		return f.Causes(d)
	}
	return reasons.Status(d.Status)
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
	Nominated string               // the node where others leave for it
	At        placement.Assignment // there; none: not known
	Problem   string               // why the request could not be read
	InVain    string               // what else it asks for that no node offers, in a sentence; empty: nothing
	Scheduler string               // its schedulerName; empty when not known
	Gated     bool                 // it has scheduling gates
	Unseen    bool                 // no scheduler has said anything of it
	Said      string               // what its scheduler has said of it last
	Owner     string               // its controller, as KIND/NAME; empty: none, or not known
	Created   time.Time            // zero when not known

	// KeptOff is, by node, what in the pod's own spec keeps it off: it is unresolvable
	// where the pod names other nodes. Pods that are alike in that share it.
	KeptOff map[string]*decide.Refusal
}

// DefaultScheduler is the name in the chart's defaults, for users who may not read the schedulers' configuration.
const DefaultScheduler = "gpumem-scheduler"

// Unserved says of a pod why no scheduler places it, as far as is known; schedulers are the
// names of those that ask gpumem, empty when not known.
func (f WaitFacts) Unserved(schedulers []string) string {
	other := len(schedulers) > 0 && !slices.Contains(schedulers, f.Scheduler)
	known := schedulers
	if len(known) == 0 {
		known = []string{DefaultScheduler}
	}
	meant := api.Meant(f.Scheduler, known)
	misspelt := meant != "" && meant != f.Scheduler
	switch served := strings.Join(schedulers, " or "); {
	case f.Gated:
		return "it has scheduling gates: no scheduler considers it before they are removed"
	case f.Unseen && misspelt:
		return fmt.Sprintf("its schedulerName is %q, and no scheduler has considered it: did you mean %s?", f.Scheduler, meant)
	case other && f.Unseen:
		return fmt.Sprintf("its schedulerName is %q, and no scheduler has considered it: does one of this name run? gpumem's is %s", f.Scheduler, served)
	case other:
		return fmt.Sprintf("its schedulerName is %q, a scheduler that does not ask gpumem; gpumem's is %s", f.Scheduler, served)
	case f.Unseen:
		return fmt.Sprintf("no scheduler has considered it yet: does its scheduler, %q, run?", f.Scheduler)
	default:
		return ""
	}
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
	r.Problems = slices.DeleteFunc(slices.Clone(r.Problems), func(p Problem) bool { return p.Namespace != "" && p.Namespace != namespace })
	return r
}
