package placement

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Reason says why a request does not fit a node. The zero value means it fits.
type Reason uint8

// The reasons, from what can change least to what can change most. Where pods that leave help,
// from Occupied on, a request got equally far.
const (
	Fits              Reason = iota
	NoDevices                // the node offers no GPU
	WeakerEnforcement        // the node cannot hold a container to its grant as the pod demands
	OlderDriver              // the node's driver is older than the pod accepts
	NoCores                  // the pod asks for cores, and the node offers none
	NoSuchDevice             // no GPU of the node passes the pod's globs
	TooLarge                 // no GPU is large enough, were it empty
	TooFew                   // GPUs are large enough, but not as many as wanted
	Unhealthy                // too many of them are not healthy
	Occupied                 // the pod may not be beside the pods that are on them, or they are too many
	Insufficient             // not enough is free, on one GPU or in all
	Fragmented               // enough is free in all, on no GPU alone
)

// about is what is known of each reason. Sentences are made elsewhere: package reasons.
var about = [...]struct {
	name  string
	never bool // whatever pods leave the node
}{
	Fits:              {name: "Fits"},
	NoDevices:         {name: "NoDevices", never: true},
	WeakerEnforcement: {name: "WeakerEnforcement", never: true},
	OlderDriver:       {name: "OlderDriver", never: true},
	NoCores:           {name: "NoCores", never: true},
	NoSuchDevice:      {name: "NoSuchDevice", never: true},
	TooLarge:          {name: "TooLarge", never: true},
	TooFew:            {name: "TooFew", never: true},
	Unhealthy:         {name: "Unhealthy"},
	Occupied:          {name: "Occupied"},
	Insufficient:      {name: "Insufficient"},
	Fragmented:        {name: "Fragmented"},
}

// Reasons returns all reasons but Fits, in their order.
func Reasons() (out []Reason) {
	for r := range Reason(len(about)) {
		if r != Fits {
			out = append(out, r)
		}
	}
	return out
}

func (r Reason) String() string {
	if int(r) < len(about) {
		return about[r].name
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// Verdict is the answer for one request on one node.
type Verdict struct {
	Reason  Reason
	Request Request
	Node    Node
}

// Fits reports whether the request fits the node.
func (v Verdict) Fits() bool { return v.Reason == Fits }

// Unresolvable reports whether the request can never fit the node as it is,
// whatever pods leave it. (Kubernetes: UnschedulableAndUnresolvable.)
func (v Verdict) Unresolvable() bool { return about[v.Reason].never }

// Unfit says that a pod does not fit a node. It is an error; what
// people read is made of it by package reasons.
type Unfit struct {
	Pod     PodRef
	Verdict Verdict
}

func (u *Unfit) Error() string {
	return fmt.Sprintf("pod %s does not fit: %s", u.Pod, u.Verdict.Reason)
}

// Gap is how far a node is from having room for a request, to tell which of several comes
// closest.
type Gap struct {
	reason Reason
	lack   int64 // MiB that would have to come free, on the GPUs where that is least
	fit    int   // how many GPUs would do; 1 where a GPU would with a wider glob
	free   int64 // MiB, the most on one GPU; of GPUs that are too small, what they have when empty
}

// Gap returns how far the node is from having room for the request.
func (v Verdict) Gap() Gap {
	g := Gap{reason: v.Reason, free: int64(v.Node.LargestFree()) * v.Node.UnitMiB}
	switch {
	case v.Reason == TooLarge:
		g.free = int64(v.Largest()) * v.Node.UnitMiB
	case v.Reason == NoSuchDevice && v.hasNearMiss():
		g.fit = 1
	}
	if g.stage() != Occupied {
		return g
	}
	lacks := v.lacks()
	for _, lack := range lacks[:min(len(lacks), v.Request.GPUs())] {
		g.lack += int64(lack) * v.Node.UnitMiB
		if lack == 0 {
			g.fit++
		}
	}
	return g
}

// stage returns how far the request got: the same wherever pods that leave help.
func (g Gap) stage() Reason {
	if g.reason == Fits {
		return Reason(len(about))
	}
	return min(g.reason, Occupied)
}

// lacks returns how much would have to come free of each device where that helps, the least
// first. What is short of cores counts as as much of the device's memory.
func (v Verdict) lacks() []gpu.Units {
	units, cores := v.Request.Share()
	out := make([]gpu.Units, 0, 16)
	allows := v.Request.allows()
	for _, d := range v.Node.Devices {
		left := v.Node.Left(d)
		lack := max(0, units-left.Units, ceilDiv(d.Allocatable*gpu.Units(max(0, cores-left.Cores)), gpu.CoresPerDevice))
		switch v.Node.check(v.Request, d, allows) {
		case Fits, Insufficient:
			out = append(out, lack)
		case Occupied:
			out = append(out, max(1, lack, v.Node.barring(v.Request, d)))
		default: // no pod that leaves helps
		}
	}
	slices.Sort(out)
	return out
}

// Compare puts first the node where the request got further: of nodes that lack room where
// the least would have to come free, of others that with the most free on one GPU, or with the
// largest where all are too small.
func (g Gap) Compare(other Gap) int {
	return cmp.Or(
		cmp.Compare(other.stage(), g.stage()),
		cmp.Compare(g.lack, other.lack),
		cmp.Compare(other.fit, g.fit),
		cmp.Compare(other.reason, g.reason),
		cmp.Compare(other.free, g.free),
	)
}

// Largest returns what the largest of the devices has, when empty, that pass the pod's globs.
func (v Verdict) Largest() (most gpu.Units) {
	allows := v.Request.allows()
	for _, d := range v.Node.Devices {
		if allows(d) {
			most = max(most, d.Allocatable)
		}
	}
	return most
}

// LargeEnough returns how many of the devices that pass the pod's globs are large enough for
// its share when empty.
func (v Verdict) LargeEnough() (n int) {
	allows := v.Request.allows()
	for _, d := range v.Node.Devices {
		if allows(d) && v.Request.fitsEmpty(d) {
			n++
		}
	}
	return n
}
