package replay

import (
	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// The policies of the paper's simulator, in the form that its results were made
// with. They are defined for GPUs of 1000 units; where GPUs differ, the largest
// stands for what the paper calls the specification of a machine.

const (
	maxScore = 100
	maxCPU   = 128_000 // millicores of the largest machine
	maxCount = 8       // GPUs of the largest machine
)

// tightestGPU is embedded by policies that take the tightest GPUs of a node.
type tightestGPU struct{}

func (tightestGPU) devices(_ *Fleet, s *shape, n *node) []int { return s.tightest(n) }

func (n *node) freeUnits() (sum gpu.Units) {
	for i := range n.gpus {
		sum += n.gpus[i].free
	}
	return sum
}

// bestFit prefers the node on which the least CPU and GPU stays free.
type bestFit struct{ tightestGPU }

func (bestFit) score(f *Fleet, s *shape, n *node) int64 {
	left := 0.0
	left += (float64(n.cpu) - float64(s.CPU)) / maxCPU * 0.5
	left += (float64(n.freeUnits()) - float64(s.Total())) / float64(maxCount*f.largest) * 0.5
	return int64((1.0 - left) * maxScore)
}

// dotProduct prefers the node whose free resources are least like the request
// (Grandl et al., "Multi-resource packing for cluster schedulers", SIGCOMM 2014).
type dotProduct struct{ tightestGPU }

func (dotProduct) score(f *Fleet, s *shape, n *node) int64 {
	units := float64(maxCount * f.largest)
	product := 0.0
	product += float64(n.cpu) / maxCPU * (float64(s.CPU) / maxCPU)
	product += float64(n.freeUnits()) / units * (float64(s.Total()) / units)
	return int64(maxScore * (1 - product/2))
}

// clustering keeps pods of a kind together.
type clustering struct{ tightestGPU }

func (clustering) score(f *Fleet, s *shape, n *node) int64 {
	if s.GPUs == 0 {
		return 0
	}
	spec := int64(maxCount * f.largest)
	score := maxScore / 4 * (spec - int64(n.freeUnits())) / spec
	kinds := len(n.kinds)
	if n.kinds[0] > 0 {
		kinds-- // pods without a GPU do not count
	}
	switch {
	case n.kinds[f.kind(s)] > 0 && kinds == 1:
		return score + maxScore*3/4
	case n.kinds[f.kind(s)] > 0:
		return score + maxScore*2/4
	case kinds == 0:
		return score + maxScore/4
	default:
		return score
	}
}

// packing prefers GPUs in use to free ones, and those to idle nodes.
type packing struct{ tightestGPU }

func (packing) score(_ *Fleet, s *shape, n *node) int64 {
	if s.GPUs == 0 {
		return 0
	}
	free := int64(0)
	for i := range n.gpus {
		if n.gpus[i].free == n.gpus[i].capacity {
			free++
		}
	}
	if free == int64(len(n.gpus)) {
		return max(maxScore/3-free, free)
	}
	opened, left := int64(0), int64(0)
	for _, i := range s.tightest(n) {
		d := &n.gpus[i]
		if d.free == d.capacity {
			opened++
		}
		left += int64(d.free * 100 / d.capacity)
	}
	if opened > 0 {
		return max(maxScore/2-opened, maxScore/3)
	}
	return max(maxScore-left/10, maxScore/2)
}

// deviceBestFit prefers the GPU on which the least stays free, wherever it is,
// and then the fullest node.
type deviceBestFit struct{ tightestGPU }

func (deviceBestFit) score(_ *Fleet, s *shape, n *node) int64 {
	left := gpu.Units(0)
	for _, i := range s.tightest(n) {
		left += n.gpus[i].free - s.Units
	}
	return -int64(left)<<32 - int64(n.freeUnits())
}

// firstFit takes the first node with room.
type firstFit struct{ tightestGPU }

func (firstFit) score(*Fleet, *shape, *node) int64 { return 0 }
