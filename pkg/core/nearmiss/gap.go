package nearmiss

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Gap is the distance of a node from a fit, for comparing nodes.
type Gap struct {
	reason placement.Reason
	lack   int64 // MiB that must become free, on the GPUs with the smallest lack
	fit    int   // number of requested GPUs that lack nothing; 1 if a wider glob would match a GPU
	free   int64 // MiB on the GPU with the most free memory; if all GPUs are too small, the size of the largest
}

// GapOf returns the gap of a verdict.
func GapOf(v placement.Verdict) Gap {
	unit := max(1, v.Node.UnitMiB) // nodes with shares have no unit: their gaps count shares instead of MiB
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

// stage returns the reason as a measure of progress, with one value for all reasons that an eviction may
// resolve.
func (g Gap) stage() placement.Reason {
	if g.reason == placement.Fits {
		return placement.Fragmented + 1
	}
	return min(g.reason, placement.Occupied)
}

// lacks returns the amount that must become free on each device where an eviction may help, the
// smallest first. Missing cores count as the same fraction of the device's memory.
func lacks(v placement.Verdict) []gpu.Units {
	units, cores := v.Request.Share()
	out := make([]gpu.Units, 0, 16)
	for i, reason := range v.Node.Checks(v.Request) {
		d := v.Node.Devices[i]
		left := v.Node.FreeOn(d)
		short := gpu.Units(max(0, cores-left.Cores))
		lack := max(0, units-left.Units, (d.Allocatable*short+gpu.CoresPerDevice-1)/gpu.CoresPerDevice)
		switch reason {
		case placement.Fits, placement.Insufficient:
			out = append(out, lack)
		case placement.Occupied:
			out = append(out, max(1, lack, conflicting(v, d)))
		default: // no eviction helps
		}
	}
	slices.Sort(out)
	return out
}

// conflicting returns the units on a device that are allocated to pods in conflict with the request.
func conflicting(v placement.Verdict, d placement.Device) (sum gpu.Units) {
	for h := range v.Node.PodsOn(d) {
		if v.Request.ConflictsWith(h.Request) {
			units, _ := h.Request.Share()
			sum += units
		}
	}
	return sum
}

// Compare orders the closest node first: by stage, by the smallest lack, by the number of GPUs that
// lack nothing, by the reason, and then by the most free memory on one GPU, or by the largest GPU if
// all are too small.
func (g Gap) Compare(other Gap) int {
	return cmp.Or(
		cmp.Compare(other.stage(), g.stage()),
		cmp.Compare(g.lack, other.lack),
		cmp.Compare(other.fit, g.fit),
		cmp.Compare(other.reason, g.reason),
		cmp.Compare(other.free, g.free),
	)
}

// Largest returns the size of the largest device that matches the pod's globs.
func Largest(v placement.Verdict) (most gpu.Units) {
	for i, reason := range v.Node.Checks(v.Request) {
		if reason != placement.NoSuchDevice {
			most = max(most, v.Node.Devices[i].Allocatable)
		}
	}
	return most
}

// LargeEnough returns the number of devices that match the pod's globs and are large enough for its
// share when empty.
func LargeEnough(v placement.Verdict) (n int) {
	for _, reason := range v.Node.Checks(v.Request) {
		if reason != placement.NoSuchDevice && reason != placement.TooLarge {
			n++
		}
	}
	return n
}

// LargestFree returns the largest amount that a new pod without constraints can get from one GPU. The
// amount exceeds neither the GPU's free memory nor the node's sum.
func LargestFree(n placement.Node) (most gpu.Units) {
	one := placement.NewContainers(placement.Container{Kind: placement.App, Units: 1})
	plainest := placement.Request{Containers: one, InShares: n.InShares()}
	for _, d := range n.Devices {
		if left := n.FreeOn(d).Units; left > most && n.Check(plainest, d) == placement.Fits {
			most = left
		}
	}
	unrequested, _ := n.Unrequested()
	return max(0, min(most, unrequested))
}
