package allocation

import (
	"errors"
	"slices"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Pod is one pod bound to this node, as the API server has it.
type Pod struct {
	placement.Holding
	Created  time.Time
	Starting bool // the kubelet has admitted it, and has not made all of its containers yet

	// Plan is what was written of the pod when the kubelet admitted it, or by this node since;
	// nil: what is written now.
	Plan *placement.Assignment

	// Seconds has by container the variables that the pod sets and that are second names of a framework's setting.
	Seconds map[string]map[string]string

	Index string // the annotation gpu-index: the indexes of its GPUs, for people
}

// Unlisted reports whether PodResources tells of nothing that the pod holds: its plain init
// containers alone ask for memory.
func (p Pod) Unlisted() bool {
	return !slices.ContainsFunc(p.Request.Containers.All(), func(c placement.Container) bool { return c.Kind != placement.Init })
}

// Allocated is what the kubelet has given to one container.
type Allocated struct {
	Namespace, Name string // of the pod
	Container       string
	Slots           []gpu.SlotID // of memory and of cores
}

// Of reports whether it is the pod's. The kubelet names pods without their UID.
func (h Allocated) Of(pod placement.PodRef) bool {
	return h.Namespace == pod.Namespace && h.Name == pod.Name
}

// Only returns the slots of one resource.
func (h Allocated) Only(r gpu.Resource) []gpu.SlotID {
	return those(h.Slots, func(id gpu.SlotID) bool { return id.Resource() == r })
}

// State is what is known on a node at one moment.
type State struct {
	Inventory gpu.Inventory // a GPU that is cordoned takes no pods that no scheduler placed
	Slots     *gpu.Slots    // of Inventory
	Pods      []Pod         // bound to this node and not terminal
	Allocated []Allocated   // of the shared resources

	// Listed are the pods that the kubelet lists, as namespace/name, with
	// something allocated or without; nil when it cannot be asked. It lists a pod
	// from the moment before it admits it.
	Listed map[string]bool

	// Attributed are the grants of pods that are still here, as Admit returned them.
	// The kubelet may not list them yet, or never will.
	Attributed []Attributed

	// NeverListed says that the kubelet has not listed yet, to the caller, what it
	// has given: any pod may have got something already.
	NeverListed bool

	Policy          placement.Policy // for pods that name none
	PlaceUnassigned bool             // place pods that no scheduler placed; otherwise refuse them
}

// ErrNoPod says that no pod is known that waits for such an amount: the API
// server's news of it may still be on its way.
var ErrNoPod = errors.New("no pod that waits on this node asks for this amount")

// Attributed is a grant, and the container for which the kubelet is likeliest to have
// asked.
type Attributed struct {
	Pod       placement.PodRef
	Container placement.Container
	Slots     []gpu.SlotID

	Earlier bool // the kubelet may have restarted since, and lost the grant: then it asks again
}

// Allocated returns the grant as the kubelet would tell of it.
func (g Attributed) Allocated() Allocated {
	return Allocated{Namespace: g.Pod.Namespace, Name: g.Pod.Name, Container: g.Container.Name, Slots: g.Slots}
}

// WithUnlisted adds to what the kubelet tells what was given to pods that it tells nothing about,
// once it has admitted them: what it asks for later is for others.
func (s State) WithUnlisted() State {
	var unlisted []Allocated
	for _, g := range s.Attributed {
		served := func(p Pod) bool { return p.Pod == g.Pod && p.Admitted && p.Unlisted() }
		if !slices.ContainsFunc(s.Pods, served) || g.OfAnother(s.Allocated) {
			continue
		}
		same := func(h Allocated) bool { return h.Of(g.Pod) && h.Container == g.Container.Name }
		if i := slices.IndexFunc(unlisted, same); i >= 0 { // the other resource
			unlisted[i].Slots = slices.Concat(unlisted[i].Slots, g.Slots)
		} else {
			unlisted = append(unlisted, g.Allocated())
		}
	}
	memoryless := func(h Allocated) bool { return len(h.Only(gpu.Memory)) == 0 }
	s.Allocated = slices.Concat(s.Allocated, slices.DeleteFunc(unlisted, memoryless))
	return s
}

// Amount returns how many slots of a resource a container asks for.
func Amount(r gpu.Resource, c placement.Container) int {
	if r == gpu.Cores {
		return c.Cores
	}
	return int(c.Units)
}
