package grants

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/mps"
)

// Record records a grant, before the kubelet gets it.
func (n *State) Record(g Grant) { n.grants.Put(g) }

// Registered records that a kubelet has registered the plugin: one that restarted may have lost grants.
func (n *State) Registered() { n.grants.Registered() }

// Load loads the grants of the process before this one, which must not serve the kubelet any more.
func (n *State) Load() error { return n.grants.Load() }

// GiveWay is called while another process serves the kubelet. That process records the grants.
func (n *State) GiveWay() { n.grants.GiveWay() }

// Grants returns the recorded grants of a container by its slots of memory and of cores. Each is nil where
// none is recorded.
func (n *State) Grants(h allocation.Allocated) (memory, cores *Grant) {
	find := func(r gpu.Resource) *Grant {
		one := h
		if one.Slots = h.Only(r); len(one.Slots) == 0 {
			return nil
		}
		if g, ok := n.grants.Find(one); ok {
			return &g
		}
		return nil
	}
	return find(gpu.Memory), find(gpu.Cores)
}

// InitGrants is Grants of a plain init container that has that many units. Given is its environment; nil: unknown.
func (n *State) InitGrants(pod allocation.Pod, container string, units gpu.Units, given map[string]string) (memory, cores *Grant) {
	return n.grants.FindInit(pod.Pod, container, int(units), given)
}

// Attribute records that an init container of a pod has a grant.
func (n *State) Attribute(pod allocation.Pod, container string, memory Grant) {
	n.grants.Attribute(pod.Pod, container, memory)
}

// levelOf returns the level and the protocol of MPS with which a container got its memory. Both are empty where
// nothing is recorded.
func (n *State) levelOf(h allocation.Allocated) Former {
	if memory, _ := n.Grants(h); memory != nil {
		return Former{Level: memory.Level, MPS: memory.MPS}
	}
	return n.grants.FormerLevel(h.Only(gpu.Memory)...)
}

// LevelOfContainer returns the level at which a container got its slots; empty where nothing is recorded.
func (n *State) LevelOfContainer(h allocation.Allocated) gpu.Enforcement { return n.levelOf(h).Level }

// MPSOf returns the protocol of the MPS daemon whose client a container was made. It is 0 for no client, and where
// nothing is recorded.
func (n *State) MPSOf(h allocation.Allocated) (protocol int) { return n.levelOf(h).MPS }

// RetiredClients returns the pods on each GPU that are clients of an MPS protocol which gpumem no longer runs. The map has
// the kubelet's device IDs of the resource, each with its pod.
func (n *State) RetiredClients(inv gpu.Inventory, held map[string]string) map[gpu.UUID][]string {
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		return nil // nothing of such a node is offered
	}
	protocols := make(map[gpu.SlotID]int)
	grants, _ := n.grants.Grants()
	for _, g := range grants {
		for _, id := range g.Slots {
			protocols[id] = g.MPS
		}
	}
	out := make(map[gpu.UUID][]string)
	for id, pod := range held {
		slot := gpu.SlotID(id)
		protocol, granted := protocols[slot]
		if !granted {
			protocol = n.grants.FormerLevel(slot).MPS
		}
		device, err := slots.Device(slot)
		if err != nil || mps.CheckProtocol(protocol) == nil || slices.Contains(out[device.UUID], pod) {
			continue
		}
		out[device.UUID] = append(out[device.UUID], pod)
	}
	return out
}

// LevelOf returns the weakest level of a pod's containers: as recorded, or else as its annotation has it.
func (n *State) LevelOf(s allocation.State, pod allocation.Pod) (weakest gpu.Enforcement) {
	for _, h := range s.Allocated {
		if !h.Of(pod.Pod) || len(h.Only(gpu.Memory)) == 0 {
			continue
		}
		level := n.levelOf(h).Level
		if level == "" {
			return pod.Assignment.Enforcement
		}
		if weakest == "" || !level.AtLeast(weakest) {
			weakest = level
		}
	}
	return cmp.Or(weakest, pod.Assignment.Enforcement)
}
