package allocation

import (
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// byGPUShare reports whether gpushare's device plugin gave the slots.
func (h Allocated) byGPUShare() bool { return slices.ContainsFunc(h.Slots, gpu.SlotID.GPUShare) }

// byGPUShare reports whether the kubelet has slots of gpushare for the pod.
func (t *podState) byGPUShare() bool { return slices.ContainsFunc(t.slots(), gpu.SlotID.GPUShare) }

// byIndex returns what gpushare wrote of a pod, or nothing if that is not on
// this node.
func (s State) byIndex(p Pod) placement.Assignment {
	chosen := Grant{Devices: those(s.Inventory.Devices, func(d gpu.Device) bool { return slices.Contains(p.Indexes, d.Index) })}
	if len(p.Indexes) != p.Request.GPUs() || len(chosen.Devices) != len(p.Indexes) {
		return placement.Assignment{}
	}
	return chosen.assignment().WithShares(p.Request)
}

// withoutGPUShare returns the free slots without those whose memory pods of
// gpushare use. The kubelet counts those pods by IDs that are none of ours, and so
// takes as many of ours for free as there are. What is in must is kept.
func (b *podStates) withoutGPUShare(free map[gpu.UUID][]gpu.SlotID, must []gpu.SlotID) map[gpu.UUID][]gpu.SlotID {
	var holdings []placement.Holding
	for _, h := range those(b.strays, Allocated.byGPUShare) {
		holdings = append(holdings, b.stray(h))
	}
	for _, t := range those(b.pods, (*podState).byGPUShare) {
		holdings = append(holdings, t.Holding)
	}
	node := placement.NewNode("", b.Inventory, holdings)
	for _, d := range node.Devices {
		used := d.Requested
		for _, h := range node.Unattributed {
			used += h.Request.Units()
		}
		for i := len(free[d.UUID]) - 1; i >= 0 && used > 0; i-- {
			if !slices.Contains(must, free[d.UUID][i]) {
				free[d.UUID] = slices.Delete(free[d.UUID], i, i+1)
				used--
			}
		}
	}
	return free
}
