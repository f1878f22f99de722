package reasons

import (
	"fmt"
	"math"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

// Why says what puts the first of some nodes before the one that the policy alone prefers; it is
// empty where that is the same node.
func Why(r ranking.Ranking, nodes []*placement.Node) string {
	if r.First.Index == r.Alone.Index {
		return ""
	}
	first, alone := nodes[r.First.Index], nodes[r.Alone.Index]
	var because string
	switch {
	case r.First.Grouped != r.Alone.Grouped:
		because = "a pod of its gpu-group is there"
	case r.First.ModelCost != r.Alone.ModelCost:
		because = "the pod's gpu-model-preference is for that model"
	case r.First.Choice.Compare(r.Alone.Choice) != 0:
		because = "the GPUs there are nearer to one another"
	default:
		because = fmt.Sprintf("on %s it %s", alone.Name, takes(r.First.Cost, r.Alone.Cost, alone.UnitMiB))
	}
	return fmt.Sprintf("%s goes before %s, which is as good or better by the policy alone: %s", first.Name, alone.Name, because)
}

// takes says what a pod takes from pods to come above all, where that is more than elsewhere.
func takes(less, more ranking.Cost, unitMiB int64) string {
	models, cpu, several := more.Models-less.Models, more.CPU-less.CPU, more.Several-less.Several
	most := max(models, cpu, several)
	format := "takes about %s more from pods that can use few other models"
	switch most {
	case several:
		format = "takes about %s more from pods that need several GPUs of one node"
	case cpu:
		format = "leaves about %s more of GPU memory without the CPU that pods need beside it"
	}
	return fmt.Sprintf(format, gpu.Format(gpu.Units(math.Ceil(most)), unitMiB))
}
