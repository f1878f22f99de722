package grants

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/mps"
)

// Grants returns the grant of memory and the grant of cores that are recorded for a container's slots. A grant
// is nil if it is not recorded.
func (n *State) Grants(h allocation.Allocated) (memory, cores *Grant) {
	newest := func(r gpu.Resource) *Grant {
		one := h
		if one.Slots = h.SlotsOf(r); len(one.Slots) == 0 {
			return nil
		}
		if g, ok := n.Find(one); ok {
			return &g
		}
		return nil
	}
	return newest(gpu.Memory), newest(gpu.Cores)
}

// Recorded returns the level of a container's grant, and the protocol of the MPS daemon that the container is a
// client of (0 for other containers). If no grant is recorded, Recorded returns the result of FormerLevel.
func (n *State) Recorded(h allocation.Allocated) Former {
	if memory, _ := n.Grants(h); memory != nil {
		return Former{Level: memory.Level, MPS: memory.MPS}
	}
	return n.FormerLevel(h.SlotsOf(gpu.Memory)...)
}

// RetiredClients returns, by GPU, the pods that are clients of an MPS protocol that gpumem no longer runs. The
// map `allocatedPods` contains the pod for each allocated device ID of GPU memory.
func (n *State) RetiredClients(inv gpu.Inventory, allocatedPods map[string]string) map[gpu.UUID][]string {
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		return nil // such a node offers nothing
	}
	protocols := make(map[gpu.SlotID]int)
	grants, _ := n.Table.Grants()
	for _, g := range grants {
		for _, id := range g.Slots {
			protocols[id] = g.MPS
		}
	}
	out := make(map[gpu.UUID][]string)
	for id, pod := range allocatedPods {
		slot := gpu.SlotID(id)
		protocol, granted := protocols[slot]
		if !granted {
			protocol = n.FormerLevel(slot).MPS
		}
		device, err := slots.Device(slot)
		if err != nil || mps.CheckProtocol(protocol) == nil || slices.Contains(out[device.UUID], pod) {
			continue
		}
		out[device.UUID] = append(out[device.UUID], pod)
	}
	return out
}

// LevelOf returns the weakest level of a pod's containers. If a container has no recorded level, LevelOf
// returns the level in the pod's annotation.
func (n *State) LevelOf(s allocation.State, pod allocation.Pod) (weakest gpu.Enforcement) {
	for _, h := range s.Allocated {
		if !h.BelongsTo(pod.Pod) || len(h.SlotsOf(gpu.Memory)) == 0 {
			continue
		}
		level := n.Recorded(h).Level
		if level == "" {
			return pod.Assignment.Enforcement
		}
		if weakest == "" || !level.AtLeast(weakest) {
			weakest = level
		}
	}
	return cmp.Or(weakest, pod.Assignment.Enforcement)
}
