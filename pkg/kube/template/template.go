package template

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Labels of NVIDIA's GPU feature discovery
// (github.com/NVIDIA/k8s-device-plugin/docs/gpu-feature-discovery). They
// describe one GPU of a node whose GPUs are alike.
const (
	gpuCountLabel   = "nvidia.com/gpu.count"
	gpuMemoryLabel  = "nvidia.com/gpu.memory" // MiB
	gpuProductLabel = "nvidia.com/gpu.product"
)

// A label can say anything, so what it says is bounded.
const (
	maxGPUs  = 1024
	maxUnits = 1 << 40 // or MiB
)

// Inventory reads what a node will offer that does not exist yet: what
// its inventory annotation says, or else, when the allocatable resource and the
// count of GPUs are known, as many GPUs with an equal share each. It is empty
// when it is not known.
//
// The UUIDs are made up. So is the unit, which only words are made with: the
// largest power of two that a GPU can have as many of as it does.
func Inventory(n api.Names, node *v1.Node) (gpu.Inventory, error) {
	if _, ok := node.Annotations[n.Inventory()]; ok {
		return n.InventoryOf(node)
	}
	shares := node.Status.Allocatable[n.GPUShares()]
	name := n.Offered(!shares.IsZero())
	units := node.Status.Allocatable[name]
	count, err := number(node, gpuCountLabel, maxGPUs)
	if err != nil || count == 0 {
		return gpu.Inventory{}, err
	}
	memory, err := number(node, gpuMemoryLabel, maxUnits)
	if err != nil {
		return gpu.Inventory{}, err
	}
	if units.CmpInt64(maxUnits) > 0 || units.Sign() < 0 {
		return gpu.Inventory{}, fmt.Errorf("allocatable %s is %s, want 0 to %d", name, units.String(), int64(maxUnits))
	}
	share := units.Value() / count
	if share == 0 {
		return gpu.Inventory{}, nil
	}
	// The label has dashes where the driver's name has spaces.
	model := strings.Replace(node.Labels[gpuProductLabel], "NVIDIA-", "NVIDIA ", 1)
	inv := gpu.Inventory{UnitMiB: unitOf(memory, share), CPU: node.Status.Allocatable.Cpu().MilliValue()}
	shareMiB := int64(0)
	if !shares.IsZero() {
		inv.UnitMiB, shareMiB = 0, inv.UnitMiB
	}
	for i := range int(count) {
		inv.Devices = append(inv.Devices, gpu.Device{
			UUID: gpu.UUID(fmt.Sprintf("GPU-template-%d", i)), Index: i, Model: model,
			MemoryMiB: max(memory, share*max(inv.UnitMiB, shareMiB)), Allocatable: gpu.Units(share), ShareMiB: shareMiB, NUMANode: -1,
		})
	}
	return inv, nil
}

// unitOf returns the unit, in MiB, of a GPU with an amount of memory and of units.
func unitOf(memory, units int64) int64 {
	if memory < units {
		return 1024 // not given, or not in MiB
	}
	return 1 << (bits.Len64(uint64(memory/units)) - 1)
}

// number reads a label that is a number from 0 to most; 0 when it is not there.
func number(node *v1.Node, label string, most int64) (int64, error) {
	value, ok := node.Labels[label]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("label %s: %q: want a number from 0 to %d", label, value, most)
	}
	return n, nil
}
