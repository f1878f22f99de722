package replay

import (
	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// The policies to compare gpumem's with. Those of the paper's simulator are in the form that its
// results were made with. They are defined for GPUs of 1000 units; where GPUs differ, the largest
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

// bestFit prefers the node on which the least CPU and GPU is left free.
type bestFit struct{ tightestGPU }

func (bestFit) score(f *Fleet, s *shape, n *node) int64 {
	left := 0.0
	left += (float64(n.cpu) - float64(s.CPU)) / maxCPU * 0.5
	left += (float64(n.freeUnits()) - float64(s.Total())) / float64(maxCount*f.largest) * 0.5
	return int64((1.0 - left) * maxScore)
}

// deviceBestFit prefers the GPU on which the least is left free, wherever it is,
// and then the fullest node.
type deviceBestFit struct{ tightestGPU }

func (deviceBestFit) score(_ *Fleet, s *shape, n *node) int64 {
	left := gpu.Units(0)
	for _, i := range s.tightest(n) {
		left += n.gpus[i].free - s.Units
	}
	return -int64(left)<<32 - int64(n.freeUnits())
}

// firstFit takes the first node that it fits on.
type firstFit struct{ tightestGPU }

func (firstFit) score(*Fleet, *shape, *node) int64 { return 0 }
