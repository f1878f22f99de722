package enforcement

import (
	"errors"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// proven are the facts of a node that has everything.
func proven() Facts {
	return Facts{
		Driver:     "615.12.01",
		Devices:    []gpu.Device{{Index: 0, Model: "NVIDIA H100", PCI: "00000000:3b:00.0", ComputeCapability: "9.0"}},
		Regions:    []Region{{Name: "nvidia/0000:3b:00.0/vidmem", Bytes: 80 << 30}},
		Accounting: true,
	}
}

func TestJudge(t *testing.T) {
	absent := errors.New
	for _, tc := range []struct {
		name   string
		change func(*Facts)
		level  gpu.Enforcement
		weaker string
		writes bool
	}{
		{"everything", func(*Facts) {}, gpu.EnforcementKernel, "", false},
		{"no hook, and the runtime calls the plugin", func(f *Facts) { f.Hook = absent("no hook") }, gpu.EnforcementKernel, "", true},
		{"the hook, and the runtime does not call the plugin", func(f *Facts) { f.NRI = absent("no NRI") }, gpu.EnforcementKernel, "", false},
		{
			"neither", func(f *Facts) { f.Hook, f.NRI = absent("no hook"), absent("no NRI") },
			gpu.EnforcementMPS, "kernel: nobody writes the limits: no hook, no NRI", true,
		},
		{"an old driver", func(f *Facts) { f.Driver = "580.65.06" }, gpu.EnforcementMPS, `kernel: the driver is "580.65.06", want 615 or newer`, false},
		{"a driver that does not tell", func(f *Facts) { f.Driver = "" }, gpu.EnforcementMPS, `kernel: the driver is "", want 615 or newer`, false},
		{"no dmem", func(f *Facts) { f.Dmem, f.Regions = absent("no dmem"), nil }, gpu.EnforcementMPS, "kernel: no dmem", false},
		{
			"a GPU without a region", func(f *Facts) { f.Regions[0].Name = "nvidia/0000:3c:00.0/vidmem" },
			gpu.EnforcementMPS, "kernel: dmem.capacity has no region of GPU 0 (00000000:3b:00.0)", false,
		},
		{
			"a GPU without an address", func(f *Facts) { f.Devices[0].PCI = "" },
			gpu.EnforcementMPS, "kernel: dmem.capacity has no region of GPU 0 ()", false,
		},
		{"an MPS daemon that does not account", func(f *Facts) { f.Accounting = false }, gpu.EnforcementMPS, "kernel: the MPS daemon does not account for memory", false},
		{"no MPS daemon", func(f *Facts) { f.MPS = absent("it is dead") }, gpu.EnforcementAdvisory, "mps: it is dead; kernel: it is dead", false},
		{
			"one GPU that is too old for MPS", func(f *Facts) {
				f.Devices = append(f.Devices, gpu.Device{Index: 1, Model: "Tesla P100", PCI: "00000000:3b:00.0", ComputeCapability: "6.0"})
			}, gpu.EnforcementAdvisory,
			`mps: GPU 1 (Tesla P100) has compute capability "6.0", want 7.0 or newer; kernel: GPU 1 (Tesla P100) has compute capability "6.0", want 7.0 or newer`, false,
		},
		{
			"a GPU that does not tell", func(f *Facts) { f.Devices[0].ComputeCapability = "" }, gpu.EnforcementAdvisory,
			`mps: GPU 0 (NVIDIA H100) has compute capability "", want 7.0 or newer; kernel: GPU 0 (NVIDIA H100) has compute capability "", want 7.0 or newer`, false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := proven()
			tc.change(&f)
			v := Judge(f)
			if v.Level != tc.level || v.Weaker() != tc.weaker || v.Writes != tc.writes {
				t.Errorf("level %s, weaker because of %q, writes %t; want %s, %q, %t", v.Level, v.Weaker(), v.Writes, tc.level, tc.weaker, tc.writes)
			}
		})
	}
}

func TestParseMode(t *testing.T) {
	for _, s := range []string{"auto", "kernel", "mps", "advisory"} {
		if m, err := ParseMode(s); err != nil || string(m) != s {
			t.Errorf("ParseMode(%q) = %q, %v", s, m, err)
		}
	}
	for _, s := range []string{"", "Auto", "hard"} {
		if _, err := ParseMode(s); err == nil {
			t.Errorf("%q was taken for a mode", s)
		}
	}
}
