package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unique"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// PodRef identifies one pod. A pod recreated under the same name has a different UID.
type PodRef struct {
	Namespace, Name, UID string
}

func (p PodRef) String() string { return p.Namespace + "/" + p.Name }

// Compare orders pods by namespace, name and UID.
func (p PodRef) Compare(o PodRef) int {
	return cmp.Or(cmp.Compare(p.Namespace, o.Namespace), cmp.Compare(p.Name, o.Name), cmp.Compare(p.UID, o.UID))
}

// ContainerKind is the phase in which a container of a pod runs.
type ContainerKind uint8

// The container kinds, in the order in which the kubelet starts them.
const (
	Init    ContainerKind = iota // ends before the next container starts
	Sidecar                      // an init container with restartPolicy Always: runs along with all later ones
	App                          // runs along with the other app containers
)

// Container is the request of one container.
type Container struct {
	Name  string
	Kind  ContainerKind
	Units gpu.Units // over all GPUs of the pod
	Cores int       // per cent of one GPU, over all GPUs of the pod
}

// Containers lists the containers of a pod that request GPU memory: init containers and sidecars
// first, in the order of the pod spec. Equal lists compare with ==. The zero value is empty.
type Containers struct {
	list    list
	unnamed list // list without the containers' names

	// The pod's peak, over all its GPUs: the sum over app containers and sidecars or, if larger, the sum
	// of an init container and the sidecars started before it.
	units     gpu.Units
	cores     int
	processes int // containers that use the GPUs at the same time

	// The kubelet allocates these first: the units of the first container, and the cores of the first
	// container that requests cores.
	firstUnits gpu.Units
	firstCores int
}

// NewContainers returns a list of containers in the given order.
func NewContainers(all ...Container) (out Containers) {
	for _, c := range slices.Backward(all) {
		out.list = out.list.prepend(c)
		out.units = peak(c, c.Units, out.units)
		out.cores = peak(c, c.Cores, out.cores)
		out.processes = peak(c, int(min(1, c.Units)), out.processes)
		out.firstUnits, out.firstCores = c.Units, cmp.Or(c.Cores, out.firstCores)
		c.Name = ""
		out.unnamed = out.unnamed.prepend(c)
	}
	return out
}

// peak combines the request of container c (its) with the peak of the containers after it (theirs). An
// init container ends before the next container starts, so peak does not add its request.
func peak[N gpu.Units | int](c Container, its, theirs N) N {
	if c.Kind == Init {
		return max(its, theirs)
	}
	return its + theirs
}

// All returns the containers in order.
func (c Containers) All() []Container { return c.list.all() }

// Each returns a copy of the list with a change applied to each container.
func (c Containers) Each(change func(*Container)) Containers {
	all := c.All()
	for i := range all {
		change(&all[i])
	}
	return NewContainers(all...)
}

// Equal reports whether both lists are equal, for comparison by reflection such as go-cmp.
func (c Containers) Equal(o Containers) bool { return c == o }

func (c Containers) String() string { return fmt.Sprint(c.All()) }

// list is an immutable linked list of interned nodes: equal lists share memory and compare with ==.
// The zero value is empty.
type list struct{ first unique.Handle[link] }

type link struct {
	Container
	rest list
}

func (l list) prepend(c Container) list { return list{unique.Make(link{c, l})} }

func (l list) all() (out []Container) {
	for ; l != (list{}); l = l.first.Value().rest {
		out = append(out, l.first.Value().Container)
	}
	return out
}

// Preference orders GPU models for a pod. It excludes no model.
type Preference string

// The preferences.
const (
	Fastest  Preference = "fastest"
	Cheapest Preference = "cheapest" // the slowest model first
)

// Cost returns the rank of a GPU by its speed: a lower cost is preferred. A GPU of unknown speed is the
// last choice under either preference.
func (p Preference) Cost(speed int) int {
	switch {
	case p == Fastest:
		return -speed
	case p == Cheapest:
		return cmp.Or(speed, math.MaxInt)
	}
	return 0
}

// Group is a group of pods in a namespace. Groups of different namespaces are unrelated. The zero
// value is no group.
type Group struct {
	Namespace, Name string
}

// Request is a pod's request. The zero value requests nothing. Equal requests compare with ==; Key
// also equates requests that differ only in irrelevant fields.
type Request struct {
	Containers Containers // containers that request GPU memory
	InShares   bool       // the units are shares of GPUs instead of amounts of memory
	Count      int        // GPUs over which the request is split equally; 0 means 1
	Policy     Policy     // empty: the cluster's default

	Models Globs // patterns for the device's model; empty: any
	UUIDs  Globs // patterns for the device's UUID; empty: any

	Preference Preference // empty: none

	Group          Group // preferably on one GPU with pods of the same group
	ExclusiveGroup Group // never on one GPU with a pod of the same group

	Enforcement gpu.Enforcement // weakest acceptable level; empty: any

	CPU int64 // requested from the node, in millicores; ranking weighs it against GPU memory

	Priority int32 // pods of lower priority can be evicted for this pod
}

// GPUs returns the number of GPUs that the pod requests, at least one.
func (r Request) GPUs() int { return max(1, r.Count) }

// Empty reports whether the pod requests no GPU memory.
func (r Request) Empty() bool { return r.Containers.list == (list{}) }

// Units returns the pod's peak of memory, over all its GPUs.
func (r Request) Units() gpu.Units { return r.Containers.units }

// Cores returns the pod's peak of cores, over all its GPUs, in per cent of one GPU.
func (r Request) Cores() int { return r.Containers.cores }

// Share returns the units and cores that the pod needs on each of its GPUs, rounded up.
func (r Request) Share() (gpu.Units, int) {
	n := r.GPUs()
	return ceilDiv(r.Units(), gpu.Units(n)), ceilDiv(r.Cores(), n)
}

func ceilDiv[N gpu.Units | int](a, b N) N { return (a + b - 1) / b }

// Key identifies equivalent requests: they fit the same nodes and have the same preferences.
type Key struct{ asked Request }

// Key returns the key of the request. It contains all fields except the containers' names and the
// priority.
func (r Request) Key() Key {
	r.Count = r.GPUs()
	r.Containers.list = r.Containers.unnamed
	r.Priority = 0
	return Key{r}
}

// GPUKey is Key without the CPU, for callers that compare only the GPUs of a node.
func (r Request) GPUKey() Key {
	r.CPU = 0
	return r.Key()
}

// Interchangeable reports whether two pods can swap their assignments on a node: the kubelet's calls
// for them are equal, and each fits wherever the other fits.
func (r Request) Interchangeable(o Request) bool { return r.GPUKey() == o.GPUKey() }

// Confusable reports whether the kubelet's first Allocate call for one pod can equal the kubelet's
// first call for the other. The call contains an amount of memory or of cores, but not the pod. From
// the second call on, the IDs already allocated identify the pod.
func (r Request) Confusable(o Request) bool {
	a, b := r.Containers, o.Containers
	same := a.firstUnits == b.firstUnits || a.firstCores > 0 && a.firstCores == b.firstCores
	return same && !r.Empty() && !o.Empty()
}
