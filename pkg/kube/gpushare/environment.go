package gpushare

import (
	"strconv"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Environment returns a grant in units, for a container. As gpushare's plugin does, it
// knows of the container alone, and calls that the pod. Of several GPUs, amounts
// are those of each, and the size is that of the largest: the size that CUDA reports.
func Environment(g allocation.Grant, inv gpu.Inventory) map[string]string {
	var indexes []string
	var largest int64
	for _, d := range g.Devices {
		indexes = append(indexes, strconv.Itoa(d.Index))
		largest = max(largest, d.MemoryMiB)
	}
	granted := strconv.Itoa(g.Each)
	total := strconv.FormatInt(int64(gpu.UnitsIn(largest, 0, inv.UnitMiB)), 10)
	if inv.Enforcement == gpu.EnforcementKernel {
		total = granted // programs divide the one by the other: see shareOfLimit
	}
	return map[string]string{
		Index:     strings.Join(indexes, ","),
		Pod:       granted,
		Container: granted,
		Device:    total,
	}
}
