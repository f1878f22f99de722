package gpu

import (
	"math"
	"testing"
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

func TestInventory(t *testing.T) {
	inv := Inventory{UnitMiB: 1024, Devices: []Device{
		{UUID: "GPU-c", Index: math.MaxInt, Allocatable: 2},
		{UUID: "GPU-b", Index: 2, Allocatable: 6},
		{UUID: "GPU-a", Index: 0, Allocatable: 0},
	}}
	if got, want := inv.Allocatable(), Units(8); got != want {
		t.Errorf("Allocatable() = %d, want %d", got, want)
	}
	if d, ok := inv.Device("GPU-c"); !ok || d.Allocatable != 2 {
		t.Errorf("Device(GPU-c) = %+v, %t, want the one with 2 units", d, ok)
	}
	for status, want := range map[Status]bool{{}: true, {Cordoned: true}: true, {Unhealthy: true}: false, {Stopped: true}: false, {ByClaims: true}: false} {
		if got := (Device{Status: status}).Advertised(); got != want {
			t.Errorf("a GPU that is %+v: Advertised() = %t, want %t", status, got, want)
		}
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
}

func TestLevelFor(t *testing.T) {
	for _, tc := range []struct {
		level Enforcement
		gpus  int
		want  Enforcement
	}{
		{EnforcementMPS, 1, EnforcementMPS},
		{EnforcementMPS, 2, EnforcementAdvisory},
		{EnforcementKernel, 2, EnforcementKernel},
		{EnforcementAdvisory, 2, EnforcementAdvisory},
	} {
		if got := (Inventory{Enforcement: tc.level}).LevelFor(tc.gpus); got != tc.want {
			t.Errorf("%s, %d GPUs: %s, want %s", tc.level, tc.gpus, got, tc.want)
		}
	}
}
