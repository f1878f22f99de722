package gpu

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Resource is one of the two extended resources that each GPU offers.
type Resource uint8

// The extended resources.
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

// SlotID is the device ID under which the kubelet allocates one unit of memory, or one per cent of the
// cores, of a GPU: "<first hexadecimal digits of the UUID>-<n>", for example "a1b2c3d4-11", or
// "a1b2c3d4-c11" for cores. IDs are unique on a node and survive a reboot.
type SlotID string

// coreMark precedes the number in the ID of a core slot.
const coreMark = "c"

// Resource returns the resource of the slot.
func (id SlotID) Resource() Resource {
	_, number, _ := strings.Cut(string(id), "-")
	if strings.HasPrefix(number, coreMark) && !strings.Contains(number, "-") {
		return Cores
	}
	return Memory
}

// GPUShare reports whether gpushare's device plugin made the ID, in the form "<UUID>-_-<n>". The UUID
// does not identify the container's GPU, because the kubelet picked such IDs at random.
func (id SlotID) GPUShare() bool { return strings.Contains(string(id), "-_-") }

// An ID begins with slotDigits digits of the UUID. If the UUIDs of two GPUs of the node share this
// prefix, all IDs of the node begin with more digits, up to uuidDigits.
const (
	slotDigits = 8
	uuidDigits = 32
)

// Slots translates between the devices of one inventory and their slot IDs.
type Slots struct {
	devices  []Device
	prefixes []string // prefixes[i] is the ID prefix of devices[i]
}

// maxSlots is the maximum number of slots of a device: slot numbers have 31 bits.
const maxSlots = math.MaxInt32

// NewSlots returns the slots of an inventory. It returns an error if the UUIDs of two devices have the
// same digits, because their slots would have the same IDs, or if a device has more than maxSlots
// units. It copies the devices, so later changes of inv do not affect the slots.
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

// hexDigits returns the lower-case hexadecimal digits of a UUID.
func (id UUID) hexDigits() string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' || 'a' <= r && r <= 'f' {
			return r
		}
		return -1 // drops dashes and the letters of "GPU-"
	}, strings.ToLower(string(id)))
}

// Of returns the IDs of a device's slots of one resource, ordered by number. It returns none for an
// unknown device.
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

// count returns the number of slots of a device. A device without memory has no cores, because no pod
// could use them.
func count(r Resource, d Device) int {
	if r == Cores && d.Allocatable > 0 {
		return CoresPerDevice
	}
	return max(0, int(d.Allocatable))
}

// Device returns the device of a slot. It returns an error if the ID is malformed, names an unknown
// GPU, or has a number past the device's last slot. In the last case it returns the device with the
// error, because the device may have had more slots before.
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
