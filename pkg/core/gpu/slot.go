package gpu

import (
	"cmp"
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
// "<UUID>-_-<n>". The UUID in it does not tell the GPU: the kubelet took such IDs
// at random, and gpushare gave the container the GPU that its scheduler had
// written of the pod.
func (id SlotID) GPUShare() bool { return strings.Contains(string(id), "-_-") }

// slotDigits is how many digits of the UUID an ID carries, unless two GPUs of
// the node begin alike.
const slotDigits = 8

// Slots translates between the devices of one inventory and their slot IDs.
type Slots struct {
	devices  []Device
	prefixes []string       // of devices, in order
	byPrefix map[string]int // prefix → position in devices
}

// maxSlots is the most that a device can have: slot numbers have 31 bits.
const maxSlots = math.MaxInt32

// NewSlots names the slots of an inventory. It fails when two UUIDs hold the
// same digits, for then no ID could name its GPU, and when a device has more
// units than could be numbered. What becomes of the inventory later does not
// show in the slots.
func NewSlots(inv Inventory) (*Slots, error) {
	ids := make([]UUID, 0, len(inv.Devices))
	for _, d := range inv.Devices {
		ids = append(ids, d.UUID)
		if d.Allocatable > maxSlots {
			return nil, fmt.Errorf("GPU %s has %d units, want %d at most: the unit is too small", d.UUID, d.Allocatable, maxSlots)
		}
	}
	for digits := slotDigits; ; digits++ {
		s := &Slots{devices: slices.Clone(inv.Devices), byPrefix: make(map[string]int, len(inv.Devices))}
		longest := 0
		for i, d := range inv.Devices {
			hex := d.UUID.hexDigits()
			longest = max(longest, len(hex))
			prefix := hex[:min(digits, len(hex))]
			s.prefixes = append(s.prefixes, prefix)
			s.byPrefix[prefix] = i
		}
		if len(s.byPrefix) == len(inv.Devices) {
			return s, nil
		}
		if digits > longest {
			return nil, fmt.Errorf("two GPUs of the node have UUIDs with the same digits: %v", ids)
		}
	}
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

// Prefix returns what the IDs of a device's units begin with; the rest is a
// number. It is empty for an unknown device.
func (s *Slots) Prefix(id UUID) string {
	if i := s.at(id); i >= 0 {
		return s.prefixes[i] + "-"
	}
	return ""
}

// Of returns the slots of one device, in order: as many as it has of the
// resource. An unknown device has none.
func (s *Slots) Of(r Resource, id UUID) []SlotID {
	i := s.at(id)
	if i < 0 {
		return nil
	}
	before := s.Prefix(id)
	if r == Cores {
		before += coreMark
	}
	n := count(r, s.devices[i])
	out := make([]SlotID, 0, n)
	for k := range n {
		out = append(out, SlotID(before+strconv.FormatInt(k, 10)))
	}
	return out
}

func (s *Slots) at(id UUID) int {
	return slices.IndexFunc(s.devices, func(d Device) bool { return d.UUID == id })
}

// count returns how many slots a device has: no cores without memory, for
// no pod could use them.
func count(r Resource, d Device) int64 {
	if r == Cores && d.Allocatable > 0 {
		return CoresPerDevice
	}
	return max(0, int64(d.Allocatable))
}

// Device returns the device that a slot belongs to. The error says what is
// wrong with an ID that belongs to none: its form, its GPU or its number.
func (s *Slots) Device(id SlotID) (Device, error) {
	i, n, err := s.split(id)
	if err != nil {
		return Device{}, err
	}
	d := s.devices[i]
	if most := count(id.Resource(), d); n >= most {
		return Device{}, fmt.Errorf("slot %q is past the end of GPU %s, which has %d of them", id, d.UUID, most)
	}
	return d, nil
}

// Once returns the device that a slot belongs to, or belonged to when the device had more
// of them.
func (s *Slots) Once(id SlotID) (Device, error) {
	i, _, err := s.split(id)
	if err != nil {
		return Device{}, err
	}
	return s.devices[i], nil
}

func (s *Slots) split(id SlotID) (device int, n int64, err error) {
	prefix, number, ok := strings.Cut(string(id), "-")
	if !ok {
		return 0, 0, fmt.Errorf("slot %q is not of the form <GPU>-<number>", id)
	}
	device, ok = s.byPrefix[prefix]
	if !ok {
		return 0, 0, fmt.Errorf("slot %q names a GPU that this node does not have, or does not offer (--devices)", id)
	}
	number = strings.TrimPrefix(number, coreMark)
	n, err = strconv.ParseInt(number, 10, 32)
	if err != nil || n < 0 || number != strconv.FormatInt(n, 10) {
		return 0, 0, fmt.Errorf("slot %q does not end in a number", id)
	}
	return device, n, nil
}

// Sort orders IDs of a resource by device and number, so that what is chosen from
// them does not depend on the order in which the kubelet names them. IDs that
// belong to no device come last.
func (s *Slots) Sort(ids []SlotID) {
	key := func(id SlotID) (int, int64) {
		if i, n, err := s.split(id); err == nil {
			return i, n
		}
		return len(s.devices), 0
	}
	slices.SortFunc(ids, func(a, b SlotID) int {
		ai, an := key(a)
		bi, bn := key(b)
		return cmp.Or(cmp.Compare(ai, bi), cmp.Compare(an, bn), cmp.Compare(a, b))
	})
}
