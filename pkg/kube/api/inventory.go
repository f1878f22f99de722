package api

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// maxLanes limits the lanes of a link, so that sums cannot overflow.
const maxLanes = 1 << 10

// ValidateInventory returns an error if an inventory is inconsistent: an impossible unit or share, an
// unknown enforcement level, a missing or duplicate UUID, a duplicate index, more units than memory, or
// a link or an allocation with an unknown device.
func ValidateInventory(inv gpu.Inventory) error {
	if inv.UnitMiB < 0 || inv.UnitMiB > maxAmount {
		return fmt.Errorf("unit is %d MiB, want 1 to %d, or 0 for shares", inv.UnitMiB, int64(maxAmount))
	}
	if inv.Enforcement != "" {
		if _, err := ParseEnforcement(string(inv.Enforcement)); err != nil {
			return err
		}
	}
	uuids, err := validateDevices(inv)
	if err != nil {
		return err
	}
	for _, l := range inv.Links {
		if !uuids[l.A] || !uuids[l.B] || l.A == l.B || l.Lanes < 1 || l.Lanes > maxLanes {
			return fmt.Errorf("link of %d lanes from %s to %s, want 1 to %d from one device to another", l.Lanes, l.A, l.B, maxLanes)
		}
	}
	return validateAllocated(inv, uuids)
}

// validateDevices returns the UUIDs of an inventory's devices, or an error if a device is inconsistent.
func validateDevices(inv gpu.Inventory) (map[gpu.UUID]bool, error) {
	uuids := make(map[gpu.UUID]bool, len(inv.Devices))
	indexes := make(map[int]bool, len(inv.Devices))
	for i, d := range inv.Devices {
		switch {
		case d.UUID == "":
			return nil, fmt.Errorf("device %d has no UUID", i)
		case uuids[d.UUID]:
			return nil, fmt.Errorf("device %s is listed twice", d.UUID)
		case d.Index < 0:
			return nil, fmt.Errorf("device %s has index %d, want 0 or more", d.UUID, d.Index)
		case indexes[d.Index]:
			return nil, fmt.Errorf("index %d is listed twice", d.Index)
		case d.Allocatable < 0 || d.MemoryMiB < 0 || d.MemoryMiB > maxAmount:
			return nil, fmt.Errorf("device %s has %d units in %d MiB, want 0 or more, and at most %d MiB", d.UUID, d.Allocatable, d.MemoryMiB, int64(maxAmount))
		case d.Foreign < 0 || d.Foreign > d.Allocatable:
			return nil, fmt.Errorf("device %s has %d units, %d of them in foreign use", d.UUID, d.Allocatable, d.Foreign)
		case !sized(d, inv.UnitMiB):
			return nil, fmt.Errorf("device %s has %d shares of %d MiB in an inventory with units of %d MiB", d.UUID, d.Allocatable, d.ShareMiB, inv.UnitMiB)
		case int64(d.Allocatable) > d.MemoryMiB/cmp.Or(d.ShareMiB, inv.UnitMiB):
			return nil, fmt.Errorf("device %s has %d units of %d MiB in %d MiB", d.UUID, d.Allocatable, cmp.Or(d.ShareMiB, inv.UnitMiB), d.MemoryMiB)
		}
		uuids[d.UUID], indexes[d.Index] = true, true
	}
	return uuids, nil
}

func sized(d gpu.Device, unitMiB int64) bool {
	return unitMiB > 0 && d.ShareMiB == 0 || unitMiB == 0 && d.InShares() && d.ShareMiB <= maxAmount && d.Allocatable <= gpu.SharesPerDevice
}

// maxAllocated limits the number of allocations in an inventory. It far exceeds the number of pods that a
// kubelet runs, and this many entries fit into a node's annotations.
const maxAllocated = 1000

func validateAllocated(inv gpu.Inventory, uuids map[gpu.UUID]bool) error {
	if len(inv.Allocated) > maxAllocated {
		return fmt.Errorf("allocations of %d pods, want %d at most", len(inv.Allocated), maxAllocated)
	}
	for _, g := range inv.Allocated {
		for _, s := range g.Shares {
			if g.UID == "" || !uuids[s.Device] || s.Units < 0 || s.Units > maxAmount || s.Cores < 0 || s.Cores > gpu.CoresPerDevice {
				return fmt.Errorf("pod %q cannot have %d units and %d%% of the cores of device %q", g.UID, s.Units, s.Cores, s.Device)
			}
		}
	}
	return nil
}

// WithAllocated returns the inventory with allocations of pods on its devices, up to maxAllocated.
func WithAllocated(inv gpu.Inventory, allocated []gpu.PodAllocation) gpu.Inventory {
	inv.Allocated = nil
	for _, g := range allocated {
		g.Shares = slices.DeleteFunc(slices.Clone(g.Shares), func(s gpu.Share) bool { _, ok := inv.Device(s.Device); return !ok })
		if len(g.Shares) > 0 && len(inv.Allocated) < maxAllocated {
			inv.Allocated = append(inv.Allocated, g)
		}
	}
	return inv
}

// ParseEnforcement parses the name of a level.
func ParseEnforcement(s string) (gpu.Enforcement, error) {
	switch e := gpu.Enforcement(s); e {
	case gpu.EnforcementAdvisory, gpu.EnforcementMPS, gpu.EnforcementKernel:
		return e, nil
	}
	return "", fmt.Errorf("enforcement %q: want advisory, mps or kernel", s)
}
