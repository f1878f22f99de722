package published

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// The capacities of our devices, which claims share.
const (
	CapacityMemory = "memory" // in bytes
	CapacityShares = "shares" // in place of memory where GPUs are offered in shares, 10 of each
	CapacityCores  = "cores"  // per cent
)

// DeviceName returns the name of a GPU of ours in the pool of its node.
func DeviceName(id gpu.UUID) string { return strings.ToLower(string(id)) }

// Order returns the order in which a node's GPUs are published, as indexes: the smallest first, for
// kube-scheduler takes the first that fits.
func Order[D any](devices []D, of func(D) gpu.Device) []int {
	order := make([]int, len(devices))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := of(devices[i]), of(devices[j])
		return cmp.Or(cmp.Compare(a.Allocatable, b.Allocatable), cmp.Compare(a.Index, b.Index))
	})
	return order
}
