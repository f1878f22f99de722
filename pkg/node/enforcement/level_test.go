package enforcement

import (
	"errors"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// proven returns the facts of a node with all abilities.
func proven() Facts {
	return Facts{
		Driver:  "615.12.01",
		Devices: []gpu.Device{{UUID: "GPU-a", Index: 0, Model: "NVIDIA H100", ComputeCapability: "9.0"}},
	}
}

func TestJudge(t *testing.T) {
	absent := errors.New
	for _, tc := range []struct {
		name   string
		change func(*Facts)
		level  gpu.Enforcement
		weaker string
		served bool
	}{
		{"everything", func(*Facts) {}, gpu.EnforcementKernel, "", true},
		{"the runtime does not call the plugin", func(f *Facts) { f.NRI = absent("no NRI") }, gpu.EnforcementMPS, "kernel: no NRI", true},
		{"an old driver", func(f *Facts) { f.Driver = "580.65.06" }, gpu.EnforcementMPS, `kernel: the driver is "580.65.06", want 615 or newer`, true},
		{"a driver that does not tell", func(f *Facts) { f.Driver = "" }, gpu.EnforcementMPS, `kernel: the driver is "", want 615 or newer`, true},
		{"control groups of version 1", func(f *Facts) { f.Cgroups = absent("no cgroup v2") }, gpu.EnforcementMPS, "kernel: no cgroup v2", true},
		{"the driver limits nothing", func(f *Facts) { f.Test = absent("not so") }, gpu.EnforcementMPS, "kernel: not so", true},
		{"a limit was not set", func(f *Facts) { f.LimitError = absent("not this one") }, gpu.EnforcementMPS, "kernel: not this one", true},
		{"no MPS daemon", func(f *Facts) { f.MPS = absent("it is dead") }, gpu.EnforcementKernel, "", false},
		{
			"neither", func(f *Facts) { f.MPS, f.Test = absent("it is dead"), absent("not so") },
			gpu.EnforcementAdvisory, "mps: it is dead; kernel: not so", false,
		},
		{
			"one GPU that is too old for MPS", func(f *Facts) {
				f.Devices = append(f.Devices, gpu.Device{Index: 1, Model: "Tesla P100", ComputeCapability: "6.0"})
				f.Driver = "580.65.06"
			}, gpu.EnforcementAdvisory,
			`mps: GPU 1 (Tesla P100) has compute capability "6.0", want 7.0 or newer; kernel: the driver is "580.65.06", want 615 or newer`, false,
		},
		{
			"a GPU that was added after the MPS daemon had started", func(f *Facts) {
				f.Devices = append(f.Devices, gpu.Device{Index: 1, Model: "NVIDIA H100", ComputeCapability: "9.0"})
				f.Driver, f.MPSGPUs = "580.65.06", []int{0}
			}, gpu.EnforcementMPS, `kernel: the driver is "580.65.06", want 615 or newer`, true,
		},
		{
			"a GPU that left MIG mode after the MPS daemon had started", func(f *Facts) { f.NRI, f.MPSGPUs = absent("no NRI"), []int{1} },
			gpu.EnforcementAdvisory, "mps: GPU 0 (NVIDIA H100): the MPS daemon was not seen to limit a client on it. If the GPU was added, came back, or left MIG mode after the daemon had started, delete the daemon's pod, with which its clients end; kernel: no NRI", false,
		},
		{"as many GPUs as the MPS daemon has", func(f *Facts) { f.NRI, f.MPSGPUs = absent("no NRI"), []int{0} }, gpu.EnforcementMPS, "kernel: no NRI", true},
		{
			"a MIG instance", func(f *Facts) {
				f.Devices = append(f.Devices, gpu.Device{UUID: "MIG-a", Index: 2, Model: "A100 MIG 1g.5gb", ComputeCapability: "8.0"})
				f.MPSGPUs = []int{0, 2}
			},
			gpu.EnforcementMPS, "kernel: GPU 2 (A100 MIG 1g.5gb) is a MIG instance: the driver limits memory of whole GPUs only", true,
		},
		{"a GPU that does not tell", func(f *Facts) { f.Devices[0].ComputeCapability = "" }, gpu.EnforcementKernel, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := proven()
			tc.change(&f)
			v := Judge(f)
			if v.Level != tc.level || v.Weaker() != tc.weaker || v.Served != tc.served {
				t.Errorf("level %s, weaker because of %q, served %t; want %s, %q, %t", v.Level, v.Weaker(), v.Served, tc.level, tc.weaker, tc.served)
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
