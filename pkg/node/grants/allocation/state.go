package allocation

import (
	"errors"
	"slices"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Pod is a pod bound to this node, as stored in the API server.
type Pod struct {
	placement.Holding
	Created  time.Time
	Starting bool // the kubelet has admitted the pod, and has not created all of its containers yet

	// Plan is the assignment at the pod's admission, or the node's last correction since then. Nil means the current
	// annotation.
	Plan *placement.Assignment

	// Some frameworks read a setting from one of two variables. gpumem sets the first. Seconds contains, by container,
	// the second variables that the pod sets (render.ResolveNames).
	Seconds map[string]map[string]string

	Index string // the annotation gpu-index: the GPUs' indexes, for people
}

// Unlisted reports whether PodResources lists none of the pod's allocations, because only its plain init
// containers request memory.
func (p Pod) Unlisted() bool {
	return !slices.ContainsFunc(p.Request.Containers.All(), func(c placement.Container) bool { return c.Kind != placement.Init })
}

// Allocated is the kubelet's allocation to one container.
type Allocated struct {
	Namespace, Name string // of the pod
	Container       string
	Slots           []gpu.SlotID // slots of memory and of cores
}

// BelongsTo reports whether the allocation belongs to the pod. The kubelet names pods without UID.
func (h Allocated) BelongsTo(pod placement.PodRef) bool {
	return h.Namespace == pod.Namespace && h.Name == pod.Name
}

// SlotsOf returns the slots of one resource.
func (h Allocated) SlotsOf(r gpu.Resource) []gpu.SlotID {
	return filter(h.Slots, func(id gpu.SlotID) bool { return id.Resource() == r })
}

// State is the known state of a node at one moment.
type State struct {
	Inventory gpu.Inventory // cordoned GPUs accept no pods that no scheduler placed
	Slots     *gpu.Slots    // for Inventory
	Pods      []Pod         // bound to this node and not terminal
	Allocated []Allocated   // allocations of gpumem's resources

	// Listed contains the pods that the kubelet lists, as namespace/name, with or without allocations. Listed
	// is nil if the kubelet does not answer. The kubelet lists a pod from just before the pod's admission.
	Listed map[string]bool

	// Attributed contains the grants of existing pods, as Admit returned them. The kubelet may list them later,
	// or never.
	Attributed []Attributed

	// NeverListed reports that the kubelet has not yet listed its allocations to this process, so any pod may
	// already have slots.
	NeverListed bool

	Policy          placement.Policy // for pods without a policy
	PlaceUnassigned bool             // place pods that no scheduler placed; otherwise reject them
}

// ErrNoPod reports that no known pod waits for this amount. The watch may not have delivered the pod yet.
var ErrNoPod = errors.New("no pod that waits on this node asks for this amount")

// Attributed is a grant with the container for which the kubelet most likely called.
type Attributed struct {
	Pod       placement.PodRef
	Container placement.Container
	Slots     []gpu.SlotID

	Earlier bool // the kubelet may have restarted since, and may have lost the grant; if so, it calls again
}

// Allocated returns the grant in the form in which the kubelet lists allocations.
func (g Attributed) Allocated() Allocated {
	return Allocated{Namespace: g.Pod.Namespace, Name: g.Pod.Name, Container: g.Container.Name, Slots: g.Slots}
}

// WithUnlisted adds to Allocated the grants of admitted pods whose allocations the kubelet never lists
// (Pod.Unlisted). These pods wait for nothing, so the kubelet's next calls are for other pods.
func (s State) WithUnlisted() State {
	var unlisted []Allocated
	for _, g := range s.Attributed {
		served := func(p Pod) bool { return p.Pod == g.Pod && p.Admitted && p.Unlisted() }
		if !slices.ContainsFunc(s.Pods, served) || g.ofAnother(s.Allocated) {
			continue
		}
		same := func(h Allocated) bool { return h.BelongsTo(g.Pod) && h.Container == g.Container.Name }
		if i := slices.IndexFunc(unlisted, same); i >= 0 { // the list has the container's slots of the other resource
			unlisted[i].Slots = slices.Concat(unlisted[i].Slots, g.Slots)
		} else {
			unlisted = append(unlisted, g.Allocated())
		}
	}
	memoryless := func(h Allocated) bool { return len(h.SlotsOf(gpu.Memory)) == 0 }
	s.Allocated = slices.Concat(s.Allocated, slices.DeleteFunc(unlisted, memoryless))
	return s
}

// Amount returns the number of slots of a resource that a container requests.
func Amount(r gpu.Resource, c placement.Container) int {
	if r == gpu.Cores {
		return c.Cores
	}
	return int(c.Units)
}
