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
// (github.com/NVIDIA/k8s-device-plugin/docs/gpu-feature-discovery). They describe one GPU of a node with
// equal GPUs.
const (
	gpuCountLabel   = "nvidia.com/gpu.count"
	gpuMemoryLabel  = "nvidia.com/gpu.memory" // in MiB
	gpuProductLabel = "nvidia.com/gpu.product"
)

// Limits of the labels, which can have any value.
const (
	maxGPUs  = 1024
	maxUnits = 1 << 40 // also limits MiB
)

// Inventory returns the inventory of a node that does not exist yet. It parses the inventory annotation
// if the node has one. Otherwise, if the node's allocatable units or shares and its number of GPUs are
// known, it returns equal GPUs, with made-up UUIDs. If one of these is unknown, the inventory is empty.
//
// The unit is made up too, and used only in messages. It is the largest power of two MiB with which the
// units fit the memory of a GPU.
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
	// The label has dashes instead of the spaces in the driver's name.
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

// unitOf returns the unit in MiB for a GPU with the given memory in MiB and number of units.
func unitOf(memory, units int64) int64 {
	if memory < units {
		return 1024 // memory is unknown or not in MiB
	}
	return 1 << (bits.Len64(uint64(memory/units)) - 1)
}

// number parses a label with a number from 0 to most. It returns 0 if the label is missing.
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
