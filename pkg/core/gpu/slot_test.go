package gpu

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// a100 returns a UUID in NVML's form with the given first digits.
func a100(first string) UUID {
	digits := (first + "5e1d0c3b9a8f7e6d5c4b3a2918070605")[:32]
	return UUID("GPU-" + digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:])
}

func inventory(devices ...Device) Inventory {
	for i := range devices {
		devices[i].Index = i
	}
	return Inventory{UnitMiB: 1024, Devices: devices}
}

func mustSlots(t testing.TB, inv Inventory) *Slots {
	t.Helper()
	s, err := NewSlots(inv)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSlotIDs(t *testing.T) {
	tests := map[string]struct {
		inv  Inventory
		want [][]SlotID // by device
	}{
		"eight digits and a number": {
			inventory(Device{UUID: a100("a1b2c3d4"), Allocatable: 2}, Device{UUID: a100("00000001"), Allocatable: 1}),
			[][]SlotID{{"a1b2c3d4-0", "a1b2c3d4-1"}, {"00000001-0"}},
		},
		"as many digits as tell two GPUs apart": {
			inventory(Device{UUID: a100("a1b2c3d400"), Allocatable: 1}, Device{UUID: a100("a1b2c3d401"), Allocatable: 1}),
			[][]SlotID{{"a1b2c3d400-0"}, {"a1b2c3d401-0"}},
		},
		"all digits, where the last alone tells two GPUs apart": {
			inventory(Device{UUID: "GPU-a1b2c3d4-0000-0000-0000-000000000001", Allocatable: 1}, Device{UUID: "GPU-a1b2c3d4-0000-0000-0000-000000000002", Allocatable: 1}),
			[][]SlotID{{"a1b2c3d4000000000000000000000001-0"}, {"a1b2c3d4000000000000000000000002-0"}},
		},
		"the case of the UUID does not show": {
			inventory(Device{UUID: UUID(strings.ToUpper(string(a100("abcdef01")))), Allocatable: 1}),
			[][]SlotID{{"abcdef01-0"}},
		},
		"a short UUID is used as it is": {
			inventory(Device{UUID: "GPU-7", Allocatable: 1}, Device{UUID: "GPU-77", Allocatable: 1}),
			[][]SlotID{{"7-0"}, {"77-0"}},
		},
		"nothing to give, no slots": {
			inventory(Device{UUID: a100("a1b2c3d4")}, Device{UUID: a100("b1b2c3d4"), Allocatable: -5}),
			[][]SlotID{{}, {}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := mustSlots(t, tc.inv)
			var got [][]SlotID
			for _, d := range tc.inv.Devices {
				got = append(got, s.Of(Memory, d.UUID))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("slots by device (-want +got):\n%s", diff)
			}
		})
	}
	if got := mustSlots(t, inventory()).Of(Memory, "GPU-x"); got != nil {
		t.Errorf("an unknown device has slots %v", got)
	}
}

func TestNewSlotsRefuses(t *testing.T) {
	tests := map[string]struct {
		inv  Inventory
		want string
	}{
		"UUIDs that differ in nothing that counts": {
			inventory(Device{UUID: "GPU-ab-cd"}, Device{UUID: "GPU-abcd"}), "same digits",
		},
		"UUIDs without a digit":               {inventory(Device{UUID: "x"}, Device{UUID: "y"}), "same digits"},
		"more units than numbers for them":    {inventory(Device{UUID: "GPU-a", Allocatable: math.MaxInt32 + 1}), "too small"},
		"units beyond what arithmetic can do": {inventory(Device{UUID: "GPU-a", Allocatable: math.MaxInt64}), "too small"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := NewSlots(tc.inv); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("NewSlots: %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestSlotIDsAreStable(t *testing.T) {
	a, b := Device{UUID: a100("aaaa0000"), Allocatable: 3}, Device{UUID: a100("bbbb0000"), Allocatable: 2}
	before := mustSlots(t, inventory(a, b))
	after := mustSlots(t, inventory(b, a)) // a reboot changed the indexes
	for _, d := range []Device{a, b} {
		if diff := cmp.Diff(before.Of(Memory, d.UUID), after.Of(Memory, d.UUID)); diff != "" {
			t.Errorf("slots of %s before and after a reboot (-before +after):\n%s", d.UUID, diff)
		}
	}
}

func TestSlotsKeepWhatTheyWereMadeOf(t *testing.T) {
	inv := inventory(Device{UUID: a100("bbbb0000"), Allocatable: 2}, Device{UUID: a100("aaaa0000"), Allocatable: 2})
	inv.Devices[0].Index, inv.Devices[1].Index = 1, 0
	s := mustSlots(t, inv)
	slices.Reverse(inv.Devices)
	if d, err := s.Device("aaaa0000-1"); err != nil || d.UUID != a100("aaaa0000") {
		t.Errorf("Device(aaaa0000-1) = %s, %v after the inventory was put in another order", d.UUID, err)
	}
}

func TestSlotDeviceRefuses(t *testing.T) {
	s := mustSlots(t, inventory(Device{UUID: a100("a1b2c3d4"), Allocatable: 12}))
	for id, want := range map[SlotID]string{
		"":                                 "not of the form",
		"a1b2c3d4":                         "not of the form",
		"-":                                "does not have",
		"b1b2c3d4-0":                       "does not have",
		"a1b2c3d-0":                        "does not have",
		"A1B2C3D4-0":                       "does not have",
		"a1b2c3d4-":                        "does not end in a number",
		"a1b2c3d4-x":                       "does not end in a number",
		"a1b2c3d4--1":                      "does not end in a number",
		"a1b2c3d4-+1":                      "does not end in a number",
		"a1b2c3d4-01":                      "does not end in a number",
		"a1b2c3d4-1-1":                     "does not end in a number",
		"a1b2c3d4-9999999999999999999999":  "does not end in a number",
		"a1b2c3d4-c":                       "does not end in a number",
		"a1b2c3d4-cc1":                     "does not end in a number",
		"a1b2c3d4-c01":                     "does not end in a number",
		"a1b2c3d4-c-1":                     "does not end in a number",
		"a1b2c3d4-c100":                    "past the end of GPU GPU-a1b2c3d4-5e1d-0c3b-9a8f-7e6d5c4b3a29, which has 100 of them",
		"a1b2c3d4-12":                      "past the end of GPU GPU-a1b2c3d4-5e1d-0c3b-9a8f-7e6d5c4b3a29, which has 12 of them",
		"a1b2c3d4-2147483647":              "past the end",
		"gpu-a1b2c3d4-1111-1111-1111-1111": "does not have",
	} {
		d, err := s.Device(id)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Device(%q) = %v, %v, want an error with %q", id, d.UUID, err, want)
		}
		if past := strings.HasPrefix(want, "past the end"); past != (d.UUID == a100("a1b2c3d4")) || !past && d.UUID != "" {
			t.Errorf("Device(%q) = %v, want the device: %v", id, d.UUID, past)
		}
	}
}

func TestCoreSlots(t *testing.T) {
	s := mustSlots(t, inventory(Device{UUID: a100("a1b2c3d4"), Allocatable: 2}, Device{UUID: a100("b1b2c3d4")}))
	ids := s.Of(Cores, a100("a1b2c3d4"))
	if len(ids) != CoresPerDevice || ids[0] != "a1b2c3d4-c0" || ids[99] != "a1b2c3d4-c99" {
		t.Errorf("the cores are %v", ids)
	}
	if got := s.Of(Cores, a100("b1b2c3d4")); len(got) > 0 {
		t.Errorf("a GPU without a unit of memory has cores %v", got)
	}
	if got := SlotID("GPU-c1b2c3d4-5e1d-0c3b-9a8f-7e6d5c4b3a29-_-3").Resource(); got != Memory {
		t.Errorf("a slot of gpushare is one of %s", got)
	}
	if d, err := s.Device("a1b2c3d4-c99"); err != nil || d.UUID != a100("a1b2c3d4") {
		t.Errorf("Device = %v, %v", d.UUID, err)
	}
}

// FuzzSlots checks that every ID resolves to its device, that IDs are unique, and that Device rejects other
// strings.
func FuzzSlots(f *testing.F) {
	f.Add("GPU-a1b2c3d4", "GPU-a1b2c3d5", int64(11), "a1b2c3d4-10")
	f.Add("GPU-a1b2c3d411", "GPU-a1b2c3d422", int64(3), "a1b2c3d4-1")
	f.Add("", "x", int64(-1), "-0")
	f.Add("MIG-3fbd", "GPU-3FBD-0", int64(2), "3fbd-99999999999999999999")
	f.Fuzz(func(t *testing.T, a, b string, capacity int64, id string) {
		inv := inventory(Device{UUID: UUID(a), Allocatable: Units(capacity % 300)}, Device{UUID: UUID(b), Allocatable: 7})
		s, err := NewSlots(inv)
		if err != nil {
			return
		}
		owner := make(map[SlotID]UUID)
		for _, d := range inv.Devices {
			units, cores := s.Of(Memory, d.UUID), s.Of(Cores, d.UUID)
			if len(units) != max(0, int(d.Allocatable)) || len(cores) != 100 && len(units) > 0 || len(cores) > 0 && len(units) == 0 {
				t.Fatalf("%d units and %d cores of a device with %d units", len(units), len(cores), d.Allocatable)
			}
			for i, id := range slices.Concat(units, cores) {
				if (id.Resource() == Cores) != (i >= len(units)) {
					t.Fatalf("slot %q, the %d of %d units, is of resource %d", id, i, len(units), id.Resource())
				}
				if other, taken := owner[id]; taken {
					t.Fatalf("slot %q is of %q and of %q", id, other, d.UUID)
				}
				owner[id] = d.UUID
				if got, err := s.Device(id); err != nil || got.UUID != d.UUID {
					t.Fatalf("Device(%q) = %q, %v, want %q", id, got.UUID, err, d.UUID)
				}
			}
		}
		d, err := s.Device(SlotID(id))
		if want, ok := owner[SlotID(id)]; ok != (err == nil) || ok && d.UUID != want {
			t.Fatalf("Device(%q) = %q, %v, want %q, %t", id, d.UUID, err, want, ok)
		}
	})
}
