package api

import (
	"math"
	"strings"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

func TestValidateInventory(t *testing.T) {
	device := func(change func(*gpu.Device)) gpu.Inventory {
		inv := gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{
			{UUID: "GPU-0", Index: 0, MemoryMiB: 8192, Allocatable: 8},
			{UUID: "GPU-1", Index: 1, MemoryMiB: 8192, Allocatable: 7},
		}}
		change(&inv.Devices[1])
		return inv
	}
	tests := map[string]struct {
		inv  gpu.Inventory
		want string // part of the error; empty for none
	}{
		"two GPUs":                          {device(func(*gpu.Device) {}), ""},
		"no GPU":                            {gpu.Inventory{UnitMiB: 1}, ""},
		"a known enforcement":               {gpu.Inventory{UnitMiB: 1, Enforcement: gpu.EnforcementKernel}, ""},
		"the zero value":                    {gpu.Inventory{}, ""},
		"a negative unit":                   {gpu.Inventory{UnitMiB: -1}, "unit is -1 MiB"},
		"a unit beyond all GPUs":            {gpu.Inventory{UnitMiB: math.MaxInt64}, "unit is"},
		"an enforcement of another time":    {gpu.Inventory{UnitMiB: 1, Enforcement: "quantum"}, `enforcement "quantum"`},
		"no UUID":                           {device(func(d *gpu.Device) { d.UUID = "" }), "device 1 has no UUID"},
		"a UUID twice":                      {device(func(d *gpu.Device) { d.UUID = "GPU-0" }), "device GPU-0 is listed twice"},
		"an index twice":                    {device(func(d *gpu.Device) { d.Index = 0 }), "index 0 is listed twice"},
		"a negative index":                  {device(func(d *gpu.Device) { d.Index = -1 }), "has index -1"},
		"a negative capacity":               {device(func(d *gpu.Device) { d.Allocatable = -1 }), "-1 units"},
		"negative memory":                   {device(func(d *gpu.Device) { d.MemoryMiB = -1 }), "in -1 MiB"},
		"more units than memory":            {device(func(d *gpu.Device) { d.Allocatable = 9 }), "9 units of 1024 MiB in 8192 MiB"},
		"memory that sums would overflow":   {device(func(d *gpu.Device) { d.MemoryMiB = math.MaxInt64 }), "at most"},
		"a capacity that would overflow":    {device(func(d *gpu.Device) { d.Allocatable = math.MaxInt64 }), "units of 1024 MiB"},
		"all in foreign use":                {device(func(d *gpu.Device) { d.Foreign = 7 }), ""},
		"more in foreign use than there is": {device(func(d *gpu.Device) { d.Foreign = 8 }), "7 units, 8 of them in foreign use"},
		"less than nothing in foreign use":  {device(func(d *gpu.Device) { d.Foreign = -1 }), "-1 of them in foreign use"},
		"a GPU that has nothing to give":    {device(func(d *gpu.Device) { d.MemoryMiB, d.Allocatable = 0, 0 }), ""},
		"a GPU that is not healthy counts":  {device(func(d *gpu.Device) { d.Status.Unhealthy = true }), ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := ValidateInventory(tc.inv)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("ValidateInventory: %v, want no error", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("ValidateInventory: %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestParseEnforcement(t *testing.T) {
	for _, e := range []gpu.Enforcement{gpu.EnforcementAdvisory, gpu.EnforcementMPS, gpu.EnforcementKernel} {
		if got, err := ParseEnforcement(string(e)); err != nil || got != e {
			t.Errorf("ParseEnforcement(%q) = %q, %v", e, got, err)
		}
	}
	for _, bad := range []string{"", "Kernel", "none", "mps "} {
		if _, err := ParseEnforcement(bad); err == nil {
			t.Errorf("ParseEnforcement(%q): no error", bad)
		}
	}
}
