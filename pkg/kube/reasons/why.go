package reasons

import (
	"fmt"
	"math"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

// ExplainRanking renders the reason why a ranking differs from the policy's order. The text is empty if the policy
// alone puts the same node first.
func ExplainRanking(r ranking.Ranking) string {
	if r.First.Node == r.ByPolicy.Node {
		return ""
	}
	first, byPolicy := r.First.Node, r.ByPolicy.Node
	var because string
	switch {
	case r.First.Grouped != r.ByPolicy.Grouped:
		because = "a pod of its gpu-group is there"
	case r.First.ModelCost != r.ByPolicy.ModelCost:
		because = "the pod's gpu-model-preference is for that model"
	case r.First.Order != r.ByPolicy.Order:
		because = "the GPUs there are nearer to one another"
	default:
		format, units := largestDifference(r.First.Cost, r.ByPolicy.Cost)
		because = fmt.Sprintf(format, byPolicy.Name, Amount(gpu.Units(math.Ceil(units)), byPolicy.UnitMiB))
	}
	return fmt.Sprintf("%s ranks before %s, which is at least as good by the policy alone: %s", first.Name, byPolicy.Name, because)
}

// largestDifference returns the largest difference between two costs, in units, and a format of a message with the
// node's name and this amount.
func largestDifference(less, more ranking.Cost) (format string, units float64) {
	format, units = "on %s the pod would take a model that other pods need, at a cost of %s", more.Models-less.Models
	if cpu := more.CPU - less.CPU; cpu > units {
		format, units = "on %s the pod would leave GPU memory without the CPU that pods need with it, at a cost of %s", cpu
	}
	if several := more.MultiGPU - less.MultiGPU; several > units {
		format, units = "on %s the pod would take GPUs from pods that need several on one node, at a cost of %s", several
	}
	if idle := more.Idle - less.Idle; idle > units {
		format, units = "on %s more CPU would stay idle, at a cost of %s", idle
	}
	return format, units
}
