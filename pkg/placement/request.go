package placement

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/gpumem/gpumem/pkg/gpu"
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
	Sidecar                      // an init container that restarts always: runs beside all that follow
	App                          // runs beside the other app containers
)

// Container is what one container asks for.
type Container struct {
	Name  string
	Kind  ContainerKind
	Units gpu.Units // of all the pod's GPUs together
	Cores int       // per cent of one GPU, of all the pod's GPUs together
}

// Policy says where a pod likes to be.
type Policy string

// The policies that a pod or the cluster can choose.
const (
	Binpack   Policy = "binpack"   // where the least is left over
	Spread    Policy = "spread"    // where the largest part is free
	Exclusive Policy = "exclusive" // alone on its GPUs
)

// Known reports whether there is such a policy. Where one is configured or asked for, any
// other is an error; to those who choose by it, all GPUs and nodes are equal.
func (p Policy) Known() bool { return p.Packs() || p.Spreads() }

// Packs reports whether the policy prefers what is fullest.
func (p Policy) Packs() bool { return p == Binpack || p == Exclusive }

// Spreads reports whether the policy prefers what is emptiest.
func (p Policy) Spreads() bool { return p == Spread }

// Preference says which models of GPU a pod likes best. It keeps no pod from any.
type Preference string

// The preferences that a pod can state.
const (
	Fastest  Preference = "fastest"
	Cheapest Preference = "cheapest" // the slowest
)

// cost orders GPUs by their speed, the one to prefer first. One whose speed is
// not known is the last choice in either case.
func (p Preference) cost(speed int) int {
	switch {
	case p == Fastest:
		return -speed
	case p == Cheapest && speed == 0:
		return math.MaxInt
	case p == Cheapest:
		return speed
	default:
		return 0
	}
}

// Prefers reports whether the pod likes one device better than another, by its Preference.
func (r Request) Prefers(one, other Device) bool {
	return r.Preference.cost(one.Speed) < r.Preference.cost(other.Speed)
}

// Group is one of the groups that pods of a namespace name: a name means nothing to the pods
// of another. The zero value is none.
type Group struct {
	Namespace, Name string
}

// Request is what one pod asks for. The zero value asks for nothing.
type Request struct {
	Containers []Container // init containers and sidecars first, in the order of the pod spec; those without a share are left out
	Count      int         // GPUs to split the memory over, equally; 0 means 1
	Policy     Policy      // empty: the cluster's default

	Models Globs // that a device's model must pass; empty: any
	UUIDs  Globs // the same for its UUID

	Preference Preference // empty: none

	Group          Group // on one GPU with pods of the same where possible
	ExclusiveGroup Group // never on one GPU with a pod of the same

	Enforcement gpu.Enforcement // the weakest level to accept; empty: any

	CPU int64 // of the node, in millicores: others need it beside their GPUs

	Priority int32 // pods of lower priority can be evicted for it
}

// GPUs returns how many GPUs the request is split over: one or more.
func (r Request) GPUs() int { return max(1, r.Count) }

// Empty reports whether the pod asks for no GPU memory at all.
func (r Request) Empty() bool { return len(r.Containers) == 0 }

// Units returns the memory that the pod holds at its peak, over all its GPUs:
// the larger of all app containers and sidecars together and of each init
// container with the sidecars started before it.
func (r Request) Units() gpu.Units {
	return peak(r.Containers, func(c Container) gpu.Units { return c.Units })
}

// Cores returns the per cent of streaming multiprocessors that the pod holds
// at its peak, over all its GPUs; see Units.
func (r Request) Cores() int {
	return peak(r.Containers, func(c Container) int { return c.Cores })
}

func peak[N gpu.Units | int](containers []Container, amount func(Container) N) N {
	var sidecars, apps, highest N
	for _, c := range containers {
		switch c.Kind {
		case Init:
			highest = max(highest, sidecars+amount(c))
		case Sidecar:
			sidecars += amount(c)
			highest = max(highest, sidecars)
		default:
			apps += amount(c)
		}
	}
	return max(highest, sidecars+apps)
}

// Share returns what the pod needs of each of its GPUs.
func (r Request) Share() (gpu.Units, int) {
	n := r.GPUs()
	return ceilDiv(r.Units(), gpu.Units(n)), ceilDiv(r.Cores(), n)
}

func ceilDiv[N gpu.Units | int](a, b N) N { return (a + b - 1) / b }

// Key returns the same for requests that ask for the same: they fit the same
// nodes and like the same. Names of containers and the priority are not in it.
func (r Request) Key() string { return fmt.Sprintf("%d %s", r.CPU, r.GPUKey()) }

// GPUKey is Key for those who look at the GPUs of a node alone.
func (r Request) GPUKey() string {
	var key strings.Builder
	fmt.Fprintf(&key, "%d %q %q %q %q %q %q %q", r.GPUs(), r.Policy, r.Models, r.UUIDs, r.Preference, r.Group, r.ExclusiveGroup, r.Enforcement)
	for _, c := range r.Containers {
		fmt.Fprintf(&key, " %d:%d:%d", c.Kind, c.Units, c.Cores)
	}
	return key.String()
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
	if r.Empty() || o.Empty() {
		return false
	}
	cores := r.firstCores()
	return r.Containers[0].Units == o.Containers[0].Units || cores > 0 && cores == o.firstCores()
}

func (r Request) firstCores() int {
	for _, c := range r.Containers {
		if c.Cores > 0 {
			return c.Cores
		}
	}
	return 0
}
