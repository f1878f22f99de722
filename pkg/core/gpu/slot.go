package gpu

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Resource is one of the two extended resources: each GPU has some of both.
type Resource uint8

// The two resources.
const (
	Memory Resource = iota // units of its memory
	Cores                  // per cent of its streaming multiprocessors
)

func (r Resource) String() string {
	if r == Cores {
		return "cores"
	}
	return "memory"
}

// SlotID is the ID under which the kubelet accounts for one unit, or for one
// per cent of the cores, of one device: "<first hexadecimal digits of the
// UUID>-<n>", for example "a1b2c3d4-11", or "a1b2c3d4-c11" of its cores. IDs
// are unique in a node and the same after a reboot.
type SlotID string

// coreMark is what the number of a core begins with.
const coreMark = "c"

// Resource returns what the slot is a part of.
func (id SlotID) Resource() Resource {
	_, number, _ := strings.Cut(string(id), "-")
	if strings.HasPrefix(number, coreMark) && !strings.Contains(number, "-") {
		return Cores
	}
	return Memory
}

// GPUShare reports whether gpushare's device plugin made the ID, as
// "<UUID>-_-<n>". The UUID in it does not name the container's GPU: the kubelet picked
// such IDs at random.
func (id SlotID) GPUShare() bool { return strings.Contains(string(id), "-_-") }

// An ID carries slotDigits of the UUID's digits, or more, up to all, where two GPUs of the node
// begin alike.
const (
	slotDigits = 8
	uuidDigits = 32
)

// Slots translates between the devices of one inventory and their slot IDs.
type Slots struct {
	devices  []Device
	prefixes []string // of devices, in order
}

// maxSlots is the most that a device can have: slot numbers have 31 bits.
const maxSlots = math.MaxInt32

// NewSlots names the slots of an inventory. It fails when two UUIDs hold the
// same digits, for then no ID could name its GPU, and when a device has more
// units than could be numbered. What becomes of the inventory later does not
// show in the slots.
func NewSlots(inv Inventory) (*Slots, error) {
	s := &Slots{devices: slices.Clone(inv.Devices), prefixes: make([]string, len(inv.Devices))}
	ids := make([]UUID, len(inv.Devices))
	for digits := slotDigits; digits <= uuidDigits; digits++ {
		for i, d := range s.devices {
			if d.Allocatable > maxSlots {
				return nil, fmt.Errorf("GPU %s has %d units, want %d at most: the unit is too small", d.UUID, d.Allocatable, maxSlots)
			}
			hex := d.UUID.hexDigits()
			ids[i], s.prefixes[i] = d.UUID, hex[:min(digits, len(hex))]
		}
		if different := slices.Compact(slices.Sorted(slices.Values(s.prefixes))); len(different) == len(ids) {
			return s, nil
		}
	}
	return nil, fmt.Errorf("two GPUs of the node have UUIDs with the same digits: %v", ids)
}

// hexDigits returns the hexadecimal digits of a UUID in order, lower-case.
func (id UUID) hexDigits() string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' || 'a' <= r && r <= 'f' {
			return r
		}
		return -1 // the letters of "GPU-" among them
	}, strings.ToLower(string(id)))
}

// Of returns the slots of one device, in order: as many as it has of the
// resource. An unknown device has none.
func (s *Slots) Of(r Resource, id UUID) []SlotID {
	i := slices.IndexFunc(s.devices, func(d Device) bool { return d.UUID == id })
	if i < 0 {
		return nil
	}
	before := s.prefixes[i] + "-"
	if r == Cores {
		before += coreMark
	}
	out := make([]SlotID, count(r, s.devices[i]))
	for n := range out {
		out[n] = SlotID(before + strconv.Itoa(n))
	}
	return out
}

// count returns how many slots a device has: no cores without memory, for
// no pod could use them.
func count(r Resource, d Device) int {
	if r == Cores && d.Allocatable > 0 {
		return CoresPerDevice
	}
	return max(0, int(d.Allocatable))
}

// Device returns the device that a slot belongs to. The error says what is
// wrong with an ID that belongs to none: its form, its GPU or its number. Where it is past
// the end of a device, that device is returned with the error: it may have had more of them.
func (s *Slots) Device(id SlotID) (Device, error) {
	prefix, number, ok := strings.Cut(string(id), "-")
	if !ok {
		return Device{}, fmt.Errorf("slot %q is not of the form <GPU>-<number>", id)
	}
	i := slices.Index(s.prefixes, prefix)
	if i < 0 {
		return Device{}, fmt.Errorf("slot %q names a GPU that this node does not have, or does not offer (--devices)", id)
	}
	number = strings.TrimPrefix(number, coreMark)
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || number != strconv.Itoa(n) {
		return Device{}, fmt.Errorf("slot %q does not end in a number", id)
	}
	d := s.devices[i]
	if most := count(id.Resource(), d); n >= most {
		return d, fmt.Errorf("slot %q is past the end of GPU %s, which has %d of them", id, d.UUID, most)
	}
	return d, nil
}
