package closest

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Gap is how far a node is from taking a request, to tell which of several comes closest.
type Gap struct {
	reason placement.Reason
	lack   int64 // MiB that would have to come free, on the GPUs where that is least
	fit    int   // how many GPUs are enough; 1 where a GPU is with a wider glob
	free   int64 // MiB, the most on one GPU; of GPUs that are too small, what they have when empty
}

// Of returns how far the node of a verdict is from taking the request.
func Of(v placement.Verdict) Gap {
	unit := max(1, v.Node.UnitMiB) // of nodes with shares, shares are compared
	g := Gap{reason: v.Reason, free: int64(LargestFree(v.Node)) * unit}
	if v.Reason == placement.TooLarge {
		g.free = int64(Largest(v)) * unit
	}
	if v.Reason == placement.NoSuchDevice {
		if _, ok := FindNearMiss(v); ok {
			g.fit = 1
		}
	}
	if g.stage() != placement.Occupied {
		return g
	}
	lacks := lacks(v)
	for _, lack := range lacks[:min(len(lacks), v.Request.GPUs())] {
		g.lack += int64(lack) * unit
		if lack == 0 {
			g.fit++
		}
	}
	return g
}

// stage returns how far the request got: the same wherever pods that leave help.
func (g Gap) stage() placement.Reason {
	if g.reason == placement.Fits {
		return placement.Fragmented + 1
	}
	return min(g.reason, placement.Occupied)
}

// lacks returns how much would have to come free of each device where that helps, the least
// first. What is short of cores counts as as much of the device's memory.
func lacks(v placement.Verdict) []gpu.Units {
	units, cores := v.Request.Share()
	out := make([]gpu.Units, 0, 16)
	for i, reason := range v.Node.Checks(v.Request) {
		d := v.Node.Devices[i]
		left := v.Node.Left(d)
		short := gpu.Units(max(0, cores-left.Cores))
		lack := max(0, units-left.Units, (d.Allocatable*short+gpu.CoresPerDevice-1)/gpu.CoresPerDevice)
		switch reason {
		case placement.Fits, placement.Insufficient:
			out = append(out, lack)
		case placement.Occupied:
			out = append(out, max(1, lack, barring(v, d)))
		default: // no pod that leaves helps
		}
	}
	slices.Sort(out)
	return out
}

// barring returns what the pods have of a device with which the request may not be there.
func barring(v placement.Verdict, d placement.Device) (sum gpu.Units) {
	for _, pods := range [...][]placement.Holding{d.Pods, v.Node.Unattributed} {
		for _, h := range pods {
			if v.Request.BarredBy(h.Request) {
				units, _ := h.Request.Share()
				sum += units
			}
		}
	}
	return sum
}

// Compare puts first the node where the request got further: of nodes that lack memory where
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
func Largest(v placement.Verdict) (most gpu.Units) {
	for i, reason := range v.Node.Checks(v.Request) {
		if reason != placement.NoSuchDevice {
			most = max(most, v.Node.Devices[i].Allocatable)
		}
	}
	return most
}

// LargeEnough returns how many of the devices that pass the pod's globs are large enough for
// its share when empty.
func LargeEnough(v placement.Verdict) (n int) {
	for _, reason := range v.Node.Checks(v.Request) {
		if reason != placement.NoSuchDevice && reason != placement.TooLarge {
			n++
		}
	}
	return n
}

// LargestFree returns the most that a new pod could have of one GPU: the plainest pod of so
// much fits, and is in the node's sum, and one of more is not.
func LargestFree(n placement.Node) (most gpu.Units) {
	one := placement.NewContainers(placement.Container{Kind: placement.App, Units: 1})
	plainest := placement.Request{Containers: one, InShares: n.InShares()}
	for _, d := range n.Devices {
		if left := n.Left(d).Units; left > most && n.Check(plainest, d) == placement.Fits {
			most = left
		}
	}
	unrequested, _ := n.Unrequested()
	return max(0, min(most, unrequested))
}
