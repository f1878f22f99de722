package placement

import (
	"cmp"
	"slices"
)

// distance measures the interconnect of a set of GPUs, summed over its pairs.
type distance struct {
	unlinked int // pairs without an NVLink
	lanes    int // NVLinks of the other pairs
	crossing int // pairs across NUMA nodes
}

func (a distance) plus(b distance) distance {
	return distance{a.unlinked + b.unlinked, a.lanes + b.lanes, a.crossing + b.crossing}
}

// compare orders the better interconnect first. One pair without an NVLink slows down all collective
// operations, so it weighs more than any number of lanes.
func (a distance) compare(b distance) int {
	return cmp.Or(cmp.Compare(a.unlinked, b.unlinked), cmp.Compare(b.lanes, a.lanes), cmp.Compare(a.crossing, b.crossing))
}

// between returns the distance between two devices.
func (n Node) between(i, j int) distance {
	a, b, out := &n.Devices[i], &n.Devices[j], distance{unlinked: 1}
	if a.NUMANode != b.NUMANode {
		out.crossing = 1
	}
	for _, l := range n.Links {
		if l.A == a.UUID && l.B == b.UUID || l.A == b.UUID && l.B == a.UUID {
			out.lanes, out.unlinked = l.Lanes, 0
		}
	}
	return out
}

// span returns the distance of a set.
func (n Node) span(set []int) (sum distance) {
	for i, a := range set {
		for _, b := range set[:i] {
			sum = sum.plus(n.between(a, b))
		}
	}
	return sum
}

// maxSearched limits the exhaustive search: 16 devices have 12,870 sets of 8.
const maxSearched = 16

// nearest returns the set of devices with the least distance. Parameter want is the size of the set,
// and first is the number of leading devices that every set contains. Among equal sets, nearest returns
// the set with the earliest devices.
func nearest(node Node, devices []int, first, want int) []int {
	devices = devices[:min(len(devices), max(want, maxSearched))]
	if want == 1 || want == len(devices) {
		return devices[:want]
	}
	between := make([][]distance, len(devices))
	for i, a := range devices {
		for _, b := range devices[:i] {
			between[i] = append(between[i], node.between(a, b))
		}
	}
	var best []int
	var least distance
	var extend func(set []int, next int, sum distance)
	extend = func(set []int, next int, sum distance) {
		if len(set) == want {
			if best == nil || sum.compare(least) < 0 {
				best, least = slices.Clone(set), sum
			}
			return
		}
		for i := next; i <= len(devices)-(want-len(set)); i++ {
			with := sum
			for _, j := range set {
				with = with.plus(between[i][j])
			}
			extend(append(set, i), i+1, with)
			if i < first {
				return // every set contains device i
			}
		}
	}
	extend(make([]int, 0, want), 0, distance{})
	for i, at := range best {
		best[i] = devices[at]
	}
	return best
}
