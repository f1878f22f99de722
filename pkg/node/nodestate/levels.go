package nodestate

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// levels remembers at which level slots were handed out.
type levels map[gpu.SlotID]gpu.Enforcement

// of returns the weakest level of some slots; empty when one is not remembered,
// for it was handed out before this process started.
func (l levels) of(slots []gpu.SlotID) gpu.Enforcement {
	level := gpu.EnforcementKernel
	for _, id := range slots {
		one, ok := l[id]
		if !ok {
			return ""
		}
		if !one.AtLeast(level) {
			level = one
		}
	}
	return level
}

// HandOut remembers at which level slots are handed out.
func (n *State) HandOut(slots []gpu.SlotID, level gpu.Enforcement) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range slots {
		n.levels[id] = cmp.Or(level, gpu.EnforcementAdvisory)
	}
}

// LevelOfSlots returns the weakest level at which slots were handed out; empty when one is not
// remembered.
func (n *State) LevelOfSlots(slots []gpu.SlotID) gpu.Enforcement {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.levels.of(slots)
}

// LevelOf returns the level at which the pod was given what it holds: as
// remembered, or else as it is written.
func (n *State) LevelOf(s allocation.State, pod allocation.Pod) gpu.Enforcement {
	var slots []gpu.SlotID
	for _, h := range s.Allocated {
		if h.Of(pod.Pod) {
			slots = append(slots, h.Only(gpu.Memory)...)
		}
	}
	slots = slices.DeleteFunc(slots, gpu.SlotID.GPUShare)
	if level := n.LevelOfSlots(slots); level != "" && len(slots) > 0 {
		return level
	}
	return pod.Assignment.Enforcement
}
