package resourceslices

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// The capacities of gpumem's devices. Each claim consumes a part of them.
const (
	CapacityMemory = "memory" // in bytes
	CapacityShares = "shares" // instead of memory if the GPUs are offered in shares: 10 per GPU
	CapacityCores  = "cores"  // in per cent
)

// DeviceName returns the name of a GPU in gpumem's pool of its node.
func DeviceName(id gpu.UUID) string { return strings.ToLower(string(id)) }

// Order returns the indexes of a node's GPUs in the order of publication: the smallest first, because
// kube-scheduler allocates the first device that fits.
func Order[D any](devices []D, device func(D) gpu.Device) []int {
	order := make([]int, len(devices))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := device(devices[i]), device(devices[j])
		return cmp.Or(cmp.Compare(a.Allocatable, b.Allocatable), cmp.Compare(a.Index, b.Index))
	})
	return order
}
