package grants

import (
	"fmt"
	"math"
	"sort"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// messageLimit is the maximum size of a gRPC message to the kubelet, in bytes. The kubelet uses gRPC's default
// (k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go).
const messageLimit = 4 << 20

// listSize returns the maximum size in bytes of the ListAndWatch message with all memory slots: "Unhealthy" is
// longer than "Healthy", so all slots are unhealthy. The size follows from the protobuf encoding of
// ListAndWatchResponse in k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1.
func listSize(inv gpu.Inventory, slots *gpu.Slots) int {
	const health = 2 + len("Unhealthy")
	size := 0
	for _, d := range inv.Devices {
		if d.Allocatable <= 0 {
			continue
		}
		prefix := len(slots.Of(gpu.Cores, d.UUID)[0]) - len("c0") // the same before each unit's number
		for from, to, digits := 0, 10, 1; from < int(d.Allocatable); from, to, digits = to, to*10, digits+1 {
			device := 2 + prefix + digits + health
			size += (min(to, int(d.Allocatable)) - from) * (2 + device)
		}
	}
	return size
}

// smallestUnit returns the smallest unit, in MiB, with which the device list fits into `limit` bytes. The list
// `usableMiB` contains the usable memory of each GPU. smallestUnit assumes IDs of the usual length, for UUIDs
// that differ in their first digits.
func smallestUnit(usableMiB []int64, limit int) int64 {
	fits := func(less int) bool {
		inv := gpu.Inventory{UnitMiB: int64(less) + 1}
		for i, mib := range usableMiB {
			inv.Devices = append(inv.Devices, gpu.Device{
				UUID: gpu.UUID(fmt.Sprintf("GPU-%08x", i)), Allocatable: gpu.UnitsIn(mib, 0, inv.UnitMiB),
			})
		}
		slots, err := gpu.NewSlots(inv)
		return err == nil && listSize(inv, slots) <= max(0, limit)
	}
	return int64(sort.Search(math.MaxInt-1, fits)) + 1
}
