package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// APIVersion and Kind identify the JSON form of a report.
const (
	APIVersion = "inspect.gpumem.dev/v1"
	Kind       = "Report"
)

// Report is the GPU memory of a cluster, or of some of its nodes, by node, GPU and pod.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Resource   string `json:"resource"` // the extended resource of the amounts in units

	Nodes            []Node       `json:"nodes"`                 // by name
	WithoutInventory int          `json:"nodesWithoutInventory"` // number of nodes with neither GPU memory nor pods that have it; not in Nodes
	Total            Total        `json:"total"`                 // of Nodes
	Selected         bool         `json:"selected,omitempty"`    // Nodes are only some nodes of the cluster
	Namespace        string       `json:"namespace,omitempty"`   // if set, only its pods are listed, but the amounts include all pods
	RequestedUnknown bool         `json:"requestedUnknown"`      // the pods could not be listed
	Waiting          []WaitingPod `json:"waiting"`               // pods without a node, by namespace and name
	Problems         []Problem    `json:"problems,omitempty"`    // objects that could not be read
}

// Total is the sum over nodes whose unit is known.
type Total struct {
	CapacityMiB  int64  `json:"capacityMiB"`
	RequestedMiB *int64 `json:"requestedMiB,omitempty"` // nil if unknown
}

// Memory is an amount of GPU memory.
type Memory struct {
	Units gpu.Units `json:"units"`
	MiB   int64     `json:"MiB"` // 0 if the node's unit is unknown

	InShares bool `json:"shares,omitempty"` // the units are shares, and ten shares are a GPU
}

// Quota is the GPU memory that a ResourceQuota lets the pods of its namespace request.
type Quota struct {
	Name string `json:"name"`
	Used Memory `json:"used"` // by pods that have not ended, with or without a node
	Hard Memory `json:"hard"`
}

// Node is one node with its GPUs.
type Node struct {
	Name          string          `json:"name"`
	Address       string          `json:"address,omitempty"`
	Status        string          `json:"status,omitempty"` // as kubectl prints it, for example "Ready,SchedulingDisabled"
	UnitMiB       int64           `json:"unitMiB"`          // 0 if unknown, and if the node offers shares
	DriverVersion string          `json:"driverVersion,omitempty"`
	Enforcement   gpu.Enforcement `json:"enforcement,omitempty"`
	Weaker        string          `json:"weaker,omitempty"` // why the enforcement is not stronger
	Cores         bool            `json:"cores,omitempty"`  // its GPUs offer cores

	Capacity  Memory  `json:"capacity"`
	Requested *Memory `json:"requested,omitempty"` // includes pods on no known GPU; nil if unknown
	GPUs      []GPU   `json:"gpus"`                // by index

	PodCount    *int    `json:"podCount,omitempty"`    // in all namespaces; nil if unknown
	LargestFree *Memory `json:"largestFree,omitempty"` // the most that a new pod could get on one GPU; nil if unknown

	// Unattributed are pods on this node whose GPU is unknown. Until the device plugin has assigned a GPU,
	// their memory is unavailable to new pods on every GPU.
	Unattributed       []Pod   `json:"unattributed"`
	UnattributedMemory *Memory `json:"unattributedMemory,omitempty"` // nil if there are no such pods

	Closed   string `json:"closed,omitempty"`   // why the node takes no new pods, however much memory is free
	Taint    string `json:"taint,omitempty"`    // key of a taint that pods must tolerate to get the free memory
	Withheld bool   `json:"withheld,omitempty"` // its kubelet offers no GPU memory, so new pods get none
	Problem  string `json:"problem,omitempty"`  // why its inventory could not be read
}

// GPU is one GPU with the pods on it.
type GPU struct {
	Index             int      `json:"index"`
	UUID              gpu.UUID `json:"uuid"`
	Model             string   `json:"model,omitempty"`
	MemoryMiB         int64    `json:"memoryMiB"` // all memory, including the driver's share
	PCI               string   `json:"pci,omitempty"`
	NUMANode          *int     `json:"numaNode,omitempty"`
	ComputeCapability string   `json:"computeCapability,omitempty"`
	Speed             int      `json:"speed,omitempty"` // relative to an A100, which has 100
	NVLinks           []NVLink `json:"nvlinks,omitempty"`
	Healthy           bool     `json:"healthy"`             // it takes new pods
	Unhealthy         string   `json:"unhealthy,omitempty"` // why it takes no new pods, for people
	Cordon            string   `json:"cordon,omitempty"`    // author and reason of its cordon, for people: "by alice (its fan is loud)"
	Exclusive         bool     `json:"exclusive,omitempty"` // an exclusive pod is, or may be, on it: no other pod gets any memory

	Status gpu.Status `json:"status,omitzero"` // why it takes no new pods, for programs

	Capacity       Memory  `json:"capacity"`
	Foreign        *Memory `json:"foreign,omitempty"`        // part of the capacity that programs without a grant use
	Requested      *Memory `json:"requested,omitempty"`      // nil if unknown
	RequestedCores int     `json:"requestedCores,omitempty"` // per cent
	Pods           []Pod   `json:"pods"`
	PodCount       *int    `json:"podCount,omitempty"` // in all namespaces; nil if unknown
	NominatedPods  []Pod   `json:"kept,omitempty"`     // nominated pods that would get this GPU; pods of the same or a lower priority cannot get their memory
}

// NVLink is the connection of a GPU to another GPU of its node.
type NVLink struct {
	GPU   int `json:"gpu"` // index of the other GPU
	Lanes int `json:"lanes"`
}

// Pod is a pod's memory on one GPU, or on its node if its GPU is unknown.
type Pod struct {
	Namespace   string     `json:"namespace"`
	Name        string     `json:"name"`
	UID         string     `json:"uid,omitempty"`
	Memory      Memory     `json:"memory"`
	Cores       int        `json:"cores,omitempty"`  // per cent
	Claims      []gpu.UUID `json:"claims,omitempty"` // GPUs that its annotation names and its node does not have
	State       string     `json:"state,omitempty"`
	Started     time.Time  `json:"started,omitzero"` // when the kubelet admitted it; zero before that
	Enforcement string     `json:"enforcement,omitempty"`
	Problem     string     `json:"problem,omitempty"` // why a part of the pod could not be read
}

// WaitingPod is a pod without a node.
type WaitingPod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid,omitempty"`
	Units     gpu.Units `json:"units"`            // summed over its GPUs
	InShares  bool      `json:"shares,omitempty"` // the units are shares
	GPUs      int       `json:"gpus"`
	Cores     int       `json:"cores,omitempty"`
	Nominated string    `json:"nominated,omitempty"` // the node where kube-scheduler evicts pods for it
	Node      string    `json:"node,omitempty"`      // a node that it fits, or the closest node
	Fits      bool      `json:"fits"`
	Reason    string    `json:"reason"`
	Unserved  string    `json:"unserved,omitempty"` // why no scheduler places it; empty if no reason is known
	Owner     string    `json:"owner,omitempty"`    // its controller, as KIND/NAME
	Created   time.Time `json:"created,omitzero"`   // zero if unknown
}

// Explain describes in one line why the pod waits.
func (w WaitingPod) Explain() string {
	switch {
	case w.Fits:
		return "its GPU memory fits on " + w.Node + "; " + cmp.Or(w.Unserved, AskEvents)
	case w.Unserved != "":
		return w.comesClosest() + "; " + w.Unserved
	default:
		return w.comesClosest()
	}
}

// AskEvents is the reason of a pod that fits and has no known obstacle.
const AskEvents = "its events show why it waits"

func (w WaitingPod) comesClosest() string {
	if w.Node == "" {
		return w.Reason
	}
	return w.Node + ": " + w.Reason
}

// Problem is an object that could not be read completely.
type Problem struct {
	Object    string `json:"object"`              // for people, for example "node gpu-a"
	Namespace string `json:"namespace,omitempty"` // of the object; empty if it has none
	Message   string `json:"message"`
}

// Facts are the facts from the API server that placement.Node does not have.
type Facts struct {
	Resource          string
	Policy            placement.Policy     // the cluster's policy, for pods whose annotations name none
	Nodes             map[string]NodeFacts // by name
	Pods              map[string]PodFacts  // bound pods, by UID
	Waiting           []WaitFacts
	Schedulers        []string // names of the schedulers that call gpumem; empty if unknown
	SchedulersUnknown bool     // the names of the schedulers could not be read
	CoresOff          string   // why no node takes pods that request cores; empty if a node may take them
	PodsUnknown       bool     // the pods could not be listed
	WhyUnknown        string   // the reason for PodsUnknown, for people
	Selected          bool     // the nodes are only some nodes of the cluster
	Problems          []Problem
}

// NodeFacts are the facts of one node.
type NodeFacts struct {
	Address     string
	Status      string
	NamedByUser bool   // the user named the node, so the report has it even without GPU memory
	Withheld    bool   // its kubelet does not offer the resource of the inventory
	Problem     string // why the inventory could not be read

	NotReady     bool                // the state of its pods may be out of date
	Refuses      *decide.Refusal     // why it takes no new pods, however much memory is free; nil if it takes them
	RefusesCores *decide.Refusal     // why it takes no new pods that request cores; nil if it takes them
	Cordons      map[gpu.UUID]string // author and reason of cordons, if known: "by alice (its fan is loud)"
	Taint        string              // key of a taint that pods with GPU memory usually do not tolerate; empty if there is none
}

// cordon returns the author and the reason of a GPU's cordon; empty if there is no cordon or they are
// unknown.
func (f NodeFacts) cordon(d placement.Device) string {
	if !d.Status.Cordoned {
		return ""
	}
	return f.Cordons[d.UUID]
}

// Causes returns why a GPU of the node takes no new pods, with the author of a cordon; empty if the GPU takes
// new pods.
func (f NodeFacts) Causes(d placement.Device) string {
	return strings.TrimSpace(reasons.Causes(d.Status) + " " + f.cordon(d)) // a cordon is the last cause in reasons.Causes
}

// State describes the state of a GPU of the node, as package reasons does, with the author of a cordon.
func (f NodeFacts) State(d placement.Device) string {
	if d.Status.OnlyCordoned() {
		return f.Causes(d)
	}
	return reasons.Status(d.Status)
}

// PodFacts are the facts of one bound pod.
type PodFacts struct {
	State       string // Running, Terminating, Pending or Unknown
	Enforcement string // the level that the pod got with its GPUs
	Problem     string // why a part of the pod could not be read
}

// WaitFacts are the facts of a pod without a node.
type WaitFacts struct {
	Pod           placement.PodRef
	Request       placement.Request
	Nominated     string               // the node where kube-scheduler evicts pods for it
	NominatedGPUs placement.Assignment // its GPUs on that node; none if unknown
	Problem       string               // why the request could not be read
	InVain        string               // "asks for RESOURCE, which no node offers: ..."; empty if the pod requests no such resource
	Scheduler     string               // its schedulerName; empty if unknown
	Gated         bool                 // it has scheduling gates
	NotConsidered bool                 // no scheduler has reported anything about it
	LastMessage   string               // the last message of its scheduler
	Owner         string               // its controller, as KIND/NAME; empty if there is none or it is unknown
	Created       time.Time            // zero if unknown

	// ExcludedNodes has the nodes that the pod's own spec excludes, with the reasons. A refusal is unresolvable
	// if the pod's nodeSelector or affinity is the reason. Pods with the same constraints share the map.
	ExcludedNodes map[string]*decide.Refusal
}

// Unserved returns why no scheduler places the pod; empty if no reason is known. Parameter schedulers has
// the names of the schedulers that call gpumem; empty if unknown.
func (f WaitFacts) Unserved(schedulers []string) string {
	otherScheduler := len(schedulers) > 0 && !slices.Contains(schedulers, f.Scheduler)
	known := schedulers
	if len(known) == 0 {
		known = []string{api.DefaultScheduler}
	}
	similarName := nearmiss.SimilarName(f.Scheduler, known)
	isMisspelt := similarName != "" && similarName != f.Scheduler
	switch served := strings.Join(schedulers, " or "); {
	case f.Gated:
		return "it has scheduling gates: no scheduler considers it before they are removed"
	case f.NotConsidered && isMisspelt:
		return fmt.Sprintf("its schedulerName is %q, and no scheduler has considered it: did you mean %s?", f.Scheduler, similarName)
	case otherScheduler && f.NotConsidered:
		return fmt.Sprintf("its schedulerName is %q, and no scheduler has considered it: does a scheduler of this name run? gpumem's scheduler is %s", f.Scheduler, served)
	case otherScheduler:
		return fmt.Sprintf("its schedulerName is %q, a scheduler that does not ask gpumem; gpumem's scheduler is %s", f.Scheduler, served)
	case f.NotConsidered:
		return fmt.Sprintf("no scheduler has considered it yet: does its scheduler, %q, run?", f.Scheduler)
	default:
		return ""
	}
}

// InNamespace returns the report with the pods of one namespace only. The amounts still include the
// other pods.
func (r Report) InNamespace(namespace string) Report {
	inNamespace := func(pods []Pod) []Pod {
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
		n.Unattributed = inNamespace(n.Unattributed)
		n.GPUs = slices.Clone(n.GPUs)
		for j := range n.GPUs {
			n.GPUs[j].Pods = inNamespace(n.GPUs[j].Pods)
			if n.GPUs[j].NominatedPods != nil {
				n.GPUs[j].NominatedPods = inNamespace(n.GPUs[j].NominatedPods)
			}
		}
	}
	r.Waiting = slices.DeleteFunc(slices.Clone(r.Waiting), func(w WaitingPod) bool { return w.Namespace != namespace })
	r.Problems = slices.DeleteFunc(slices.Clone(r.Problems), func(p Problem) bool { return p.Namespace != "" && p.Namespace != namespace })
	return r
}
