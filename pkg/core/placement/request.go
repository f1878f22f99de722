package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unique"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// PodRef names one pod for good: a pod made again under its name has another UID.
type PodRef struct {
	Namespace, Name, UID string
}

func (p PodRef) String() string { return p.Namespace + "/" + p.Name }

// Compare orders pods by namespace, name and UID.
func (p PodRef) Compare(o PodRef) int {
	return cmp.Or(cmp.Compare(p.Namespace, o.Namespace), cmp.Compare(p.Name, o.Name), cmp.Compare(p.UID, o.UID))
}

// ContainerKind says when a container of a pod runs.
type ContainerKind uint8

// The kinds, in the order in which the kubelet starts them.
const (
	Init    ContainerKind = iota // runs to its end before the next starts
	Sidecar                      // an init container that restarts always: runs with all that follow
	App                          // runs with the other app containers
)

// Container is what one container asks for.
type Container struct {
	Name  string
	Kind  ContainerKind
	Units gpu.Units // of all the pod's GPUs together
	Cores int       // per cent of one GPU, of all the pod's GPUs together
}

// Containers are those of a pod that ask for a share: init containers and sidecars first, in the
// order of the pod spec. Two of the same are equal (==); the zero value is none.
type Containers struct {
	list    list
	unnamed list // the same without names

	// At the pod's peak, over all its GPUs: the larger of all app containers and sidecars
	// together and of each init container with the sidecars started before it.
	units     gpu.Units
	cores     int
	processes int // containers that use the GPUs at once

	// For what the kubelet asks first: the first of them, and the first that asks for cores.
	firstUnits gpu.Units
	firstCores int
}

// NewContainers returns containers, in their order.
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

// peak returns what a container and those after it have at their peak: an init container has
// ended before the next starts.
func peak[N gpu.Units | int](c Container, its, theirs N) N {
	if c.Kind == Init {
		return max(its, theirs)
	}
	return its + theirs
}

// All returns the containers, in their order.
func (c Containers) All() []Container { return c.list.all() }

// Each returns the containers with a change made to each.
func (c Containers) Each(change func(*Container)) Containers {
	all := c.All()
	for i := range all {
		change(&all[i])
	}
	return NewContainers(all...)
}

// Equal reports whether both are the same. It is there for who compares by reflection.
func (c Containers) Equal(o Containers) bool { return c == o }

func (c Containers) String() string { return fmt.Sprint(c.All()) }

// list is containers in their order. It is compared with ==: two of the same are one in memory.
// It does not change; the zero value is empty.
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

// Preference says which models of GPU a pod likes best. It keeps no pod from any.
type Preference string

// The preferences that a pod can state.
const (
	Fastest  Preference = "fastest"
	Cheapest Preference = "cheapest" // the slowest
)

// Cost orders GPUs by their speed, the one to prefer first. One whose speed is
// not known is the last choice in either case.
func (p Preference) Cost(speed int) int {
	switch {
	case p == Fastest:
		return -speed
	case p == Cheapest:
		return cmp.Or(speed, math.MaxInt)
	}
	return 0
}

// Group is one of the groups that pods of a namespace name: a name means nothing to the pods
// of another. The zero value is none.
type Group struct {
	Namespace, Name string
}

// Request is what one pod asks for. The zero value asks for nothing. Two of the same are equal
// (==), and so are the keys of two that ask for the same: see Key.
type Request struct {
	Containers Containers // those without a share are left out
	InShares   bool       // their units are shares of GPUs, and not amounts of memory
	Count      int        // GPUs to split the memory over, equally; 0 means 1
	Policy     Policy     // empty: the cluster's default

	Models Globs // that a device's model must pass; empty: any
	UUIDs  Globs // the same for its UUID

	Preference Preference // empty: none

	Group          Group // on one GPU with pods of the same where possible
	ExclusiveGroup Group // never on one GPU with a pod of the same

	Enforcement gpu.Enforcement // the weakest level to accept; empty: any

	CPU int64 // of the node, in millicores: others need it with their GPUs

	Priority int32 // pods of lower priority can be evicted for it
}

// GPUs returns how many GPUs the request is split over: one or more.
func (r Request) GPUs() int { return max(1, r.Count) }

// Empty reports whether the pod asks for no GPU memory at all.
func (r Request) Empty() bool { return r.Containers.list == (list{}) }

// Units returns the memory that the pod holds at its peak, over all its GPUs.
func (r Request) Units() gpu.Units { return r.Containers.units }

// Cores returns the per cent of streaming multiprocessors that the pod holds
// at its peak, over all its GPUs.
func (r Request) Cores() int { return r.Containers.cores }

// Share returns what the pod needs of each of its GPUs.
func (r Request) Share() (gpu.Units, int) {
	n := r.GPUs()
	return ceilDiv(r.Units(), gpu.Units(n)), ceilDiv(r.Cores(), n)
}

func ceilDiv[N gpu.Units | int](a, b N) N { return (a + b - 1) / b }

// Key is what a request asks for. Requests of the same key fit the same nodes and like the same.
type Key struct{ asked Request }

// Key returns the key of the request. All of a request is in it but what is taken out here: the
// names of containers, and the priority.
func (r Request) Key() Key {
	r.Count = r.GPUs()
	r.Containers.list = r.Containers.unnamed
	r.Priority = 0
	return Key{r}
}

// GPUKey is Key for those who look at the GPUs of a node alone.
func (r Request) GPUKey() Key {
	r.CPU = 0
	return r.Key()
}

// Interchangeable reports whether two pods can stand in for one another on a
// node: the kubelet asks for them in the same words, and what one may have the
// other may have too.
func (r Request) Interchangeable(o Request) bool { return r.GPUKey() == o.GPUKey() }

// Confusable reports whether the kubelet's first question for one pod could be
// its first question for the other: it names an amount, of memory or of cores,
// and no pod. From the second question on, the IDs already given tell the two
// apart.
func (r Request) Confusable(o Request) bool {
	a, b := r.Containers, o.Containers
	same := a.firstUnits == b.firstUnits || a.firstCores > 0 && a.firstCores == b.firstCores
	return same && !r.Empty() && !o.Empty()
}
