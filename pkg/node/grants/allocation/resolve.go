package allocation

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Grant is a container's allocation of one resource.
type Grant struct {
	Resource       gpu.Resource
	Devices        []gpu.Device // by index
	SlotsPerDevice int          // slots of each device
	Slots          []gpu.SlotID // in the kubelet's order
}

// size returns the total number of slots.
func (g Grant) size() int { return g.SlotsPerDevice * len(g.Devices) }

// UUIDs returns the UUIDs of the grant's devices.
func (g Grant) UUIDs() (out []string) {
	for _, d := range g.Devices {
		out = append(out, string(d.UUID))
	}
	return out
}

// assignment returns the devices of the grant, without amounts.
func (g Grant) assignment() placement.Assignment {
	var a placement.Assignment
	for _, d := range g.Devices {
		a.Shares = append(a.Shares, placement.Share{Device: d.UUID})
	}
	return a
}

// Resolve interprets the slots of a resource that the kubelet allocates to a container. It returns an error if
//
//   - there are no slots,
//   - a slot is unknown, or appears twice,
//   - a slot belongs to the other resource,
//   - a slot is past the end of its GPU, and no container has it, or
//   - the slots are unequal parts of several GPUs.
//
// If a GPU is not advertised (gpu.Device.Advertised), Resolve returns the whole grant and the error
// gpu.OutOfUse.
func Resolve(s State, r gpu.Resource, ids []gpu.SlotID) (g Grant, out error) {
	if len(ids) == 0 {
		return Grant{}, errors.New("no slots are named")
	}
	counts := make(map[gpu.UUID]int)
	seen := make(map[gpu.SlotID]bool, len(ids))
	g.Resource, g.Slots = r, ids
	for _, id := range ids {
		d, err := s.device(id)
		switch {
		case err != nil:
			return Grant{}, err
		case id.Resource() != r:
			return Grant{}, fmt.Errorf("slot %q is of the other resource", id)
		case seen[id]:
			return Grant{}, fmt.Errorf("slot %q is named twice", id)
		case out == nil && !d.Advertised():
			out = &gpu.OutOfUse{Device: d}
		}
		seen[id] = true
		counts[d.UUID]++
	}
	g.Devices = filter(s.Inventory.Devices, func(d gpu.Device) bool { return counts[d.UUID] > 0 })
	g.SlotsPerDevice = len(ids) / len(g.Devices)
	for _, d := range g.Devices {
		if counts[d.UUID] != g.SlotsPerDevice {
			return Grant{}, fmt.Errorf("the slots are of several GPUs in unequal parts (%s), and no pod may have that", list(g.Devices, counts))
		}
	}
	return g, out
}

func list(devices []gpu.Device, counts map[gpu.UUID]int) string {
	out := make([]string, 0, len(devices))
	for _, d := range devices {
		out = append(out, fmt.Sprintf("GPU%d %d", d.Index, counts[d.UUID]))
	}
	return strings.Join(out, ", ")
}

// device returns the device of a slot. It also accepts a slot past the end of a device if a container has the
// slot, because the device offered more when the kubelet allocated the slot.
func (s State) device(id gpu.SlotID) (gpu.Device, error) {
	d, err := s.Slots.Device(id)
	if err != nil && d.UUID != "" && slices.ContainsFunc(s.Allocated, func(h Allocated) bool { return slices.Contains(h.Slots, id) }) {
		return d, nil
	}
	return d, err
}

// shares returns the number of slots on each GPU of the node, in the order of the GPUs' indexes. It omits slots
// of unknown GPUs.
func (s State) shares(ids []gpu.SlotID) (out []placement.Share) {
	of := make(map[gpu.UUID]placement.Share)
	for _, id := range ids {
		d, err := s.device(id)
		if err != nil {
			continue
		}
		share := of[d.UUID]
		if share.Device = d.UUID; id.Resource() == gpu.Cores {
			share.Cores++
		} else {
			share.Units++
		}
		of[d.UUID] = share
	}
	for _, d := range s.Inventory.Devices {
		if share, ok := of[d.UUID]; ok {
			out = append(out, share)
		}
	}
	return out
}
