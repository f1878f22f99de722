package gpu

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnitsIn(t *testing.T) {
	tests := map[string]struct {
		total, reserved, unit int64
		want                  Units
	}{
		"a T4 has 14 whole GiB":                   {15360 - 512, 0, 1024, 14},
		"what is reserved is not given away":      {81559, 1024, 1024, 78},
		"an exact multiple loses nothing":         {8192, 0, 1024, 8},
		"less than a unit is nothing":             {1023, 0, 1024, 0},
		"more reserved than there is is nothing":  {1024, 2048, 256, 0},
		"a unit of nothing is nothing":            {1024, 0, 0, 0},
		"a negative unit is nothing":              {1024, 0, -1, 0},
		"no memory is nothing":                    {0, 0, 1024, 0},
		"a negative reservation that wraps is no": {math.MaxInt64, -1, 1, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := UnitsIn(tc.total, tc.reserved, tc.unit); got != tc.want {
				t.Errorf("UnitsIn(%d, %d, %d) = %d, want %d", tc.total, tc.reserved, tc.unit, got, tc.want)
			}
		})
	}
}

func TestFormat(t *testing.T) {
	tests := map[string]struct {
		units Units
		unit  int64
		want  string
	}{
		"GiB":                             {3, 1024, "3 GiB"},
		"units of several GiB":            {3, 2048, "6 GiB"},
		"MiB":                             {3, 256, "768 MiB"},
		"more than a GiB, and not whole":  {3, 1536, "4608 MiB"},
		"a node that has not said":        {3, 0, "0 MiB"},
		"what would overflow is the most": {math.MaxInt64, 2048, "9223372036854775807 GiB"},
		"the most of units of one":        {math.MaxInt64, 1, "9223372036854775807 MiB"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Format(tc.units, tc.unit); got != tc.want {
				t.Errorf("Format(%d, %d) = %q, want %q", tc.units, tc.unit, got, tc.want)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	device := func(change func(*Device)) Inventory {
		inv := Inventory{UnitMiB: 1024, Devices: []Device{
			{UUID: "GPU-0", Index: 0, MemoryMiB: 8192, Allocatable: 8},
			{UUID: "GPU-1", Index: 1, MemoryMiB: 8192, Allocatable: 7},
		}}
		change(&inv.Devices[1])
		return inv
	}
	tests := map[string]struct {
		inv  Inventory
		want string // part of the error; empty for none
	}{
		"two GPUs":                          {device(func(*Device) {}), ""},
		"no GPU":                            {Inventory{UnitMiB: 1}, ""},
		"a known enforcement":               {Inventory{UnitMiB: 1, Enforcement: EnforcementKernel}, ""},
		"the zero value":                    {Inventory{}, "unit is 0 MiB"},
		"a negative unit":                   {Inventory{UnitMiB: -1}, "unit is -1 MiB"},
		"a unit beyond all GPUs":            {Inventory{UnitMiB: math.MaxInt64}, "unit is"},
		"an enforcement of another time":    {Inventory{UnitMiB: 1, Enforcement: "quantum"}, `enforcement "quantum"`},
		"no UUID":                           {device(func(d *Device) { d.UUID = "" }), "device 1 has no UUID"},
		"a UUID twice":                      {device(func(d *Device) { d.UUID = "GPU-0" }), "device GPU-0 is listed twice"},
		"an index twice":                    {device(func(d *Device) { d.Index = 0 }), "index 0 is listed twice"},
		"a negative index":                  {device(func(d *Device) { d.Index = -1 }), "has index -1"},
		"a negative capacity":               {device(func(d *Device) { d.Allocatable = -1 }), "-1 units"},
		"negative memory":                   {device(func(d *Device) { d.MemoryMiB = -1 }), "in -1 MiB"},
		"more units than memory":            {device(func(d *Device) { d.Allocatable = 9 }), "9 units of 1024 MiB in 8192 MiB"},
		"memory that sums would overflow":   {device(func(d *Device) { d.MemoryMiB = math.MaxInt64 }), "at most"},
		"a capacity that would overflow":    {device(func(d *Device) { d.Allocatable = math.MaxInt64 }), "units of 1024 MiB"},
		"all in foreign use":                {device(func(d *Device) { d.Foreign = 7 }), ""},
		"more in foreign use than there is": {device(func(d *Device) { d.Foreign = 8 }), "7 units of which 8 are in foreign use"},
		"less than nothing in foreign use":  {device(func(d *Device) { d.Foreign = -1 }), "-1 are in foreign use"},
		"a GPU that has nothing to give":    {device(func(d *Device) { d.MemoryMiB, d.Allocatable = 0, 0 }), ""},
		"a GPU that is not healthy counts":  {device(func(d *Device) { d.Status.Unhealthy = true }), ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.inv.Validate()
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("Validate: %v, want no error", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("Validate: %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestInventory(t *testing.T) {
	inv := Inventory{UnitMiB: 1024, Devices: []Device{
		{UUID: "GPU-c", Index: math.MaxInt, Allocatable: 2},
		{UUID: "GPU-b", Index: 2, Allocatable: 6},
		{UUID: "GPU-a", Index: 0, Allocatable: 0},
	}}
	inv.Sort()
	var order []UUID
	for _, d := range inv.Devices {
		order = append(order, d.UUID)
	}
	if diff := cmp.Diff([]UUID{"GPU-a", "GPU-b", "GPU-c"}, order); diff != "" {
		t.Errorf("order after Sort (-want +got):\n%s", diff)
	}
	if got, want := inv.Allocatable(), Units(8); got != want {
		t.Errorf("Allocatable() = %d, want %d", got, want)
	}
	if d, ok := inv.Device("GPU-b"); !ok || d.Allocatable != 6 {
		t.Errorf("Device(GPU-b) = %+v, %t, want the one with 6 units", d, ok)
	}
	if d, ok := inv.Device("GPU-x"); ok {
		t.Errorf("Device(GPU-x) = %+v, want none", d)
	}
}

func TestEnforcement(t *testing.T) {
	levels := []Enforcement{EnforcementAdvisory, EnforcementMPS, EnforcementKernel}
	for i, e := range levels {
		if got, err := ParseEnforcement(string(e)); err != nil || got != e {
			t.Errorf("ParseEnforcement(%q) = %q, %v", e, got, err)
		}
		for k, want := range levels {
			if got := e.AtLeast(want); got != (i >= k) {
				t.Errorf("%s.AtLeast(%s) = %t", e, want, got)
			}
		}
		if !e.AtLeast("") {
			t.Errorf("%s.AtLeast(\"\") = false, want true: nothing is demanded", e)
		}
	}
	if Enforcement("").AtLeast(EnforcementMPS) {
		t.Error("the zero value is as strong as mps")
	}
	for _, bad := range []string{"", "Kernel", "none", "mps "} {
		if _, err := ParseEnforcement(bad); err == nil {
			t.Errorf("ParseEnforcement(%q): no error", bad)
		}
	}
}

func TestLevelFor(t *testing.T) {
	for _, tc := range []struct {
		level Enforcement
		mps   int
		gpus  int
		want  Enforcement
	}{
		{EnforcementMPS, 2, 1, EnforcementMPS},
		{EnforcementMPS, 2, 2, EnforcementAdvisory},
		{EnforcementMPS, 0, 2, EnforcementAdvisory}, // as a plugin of before says it
		{EnforcementMPS, 3, 2, EnforcementMPS},
		{EnforcementKernel, 2, 2, EnforcementKernel},
		{EnforcementAdvisory, 0, 2, EnforcementAdvisory},
	} {
		if got := (Inventory{Enforcement: tc.level, MPS: tc.mps}).LevelFor(tc.gpus); got != tc.want {
			t.Errorf("%s with protocol %d, %d GPUs: %s, want %s", tc.level, tc.mps, tc.gpus, got, tc.want)
		}
	}
}
