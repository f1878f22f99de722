package render

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

func TestWhatEnforcesAGrant(t *testing.T) {
	devices := []gpu.Device{{UUID: "GPU-a", MemoryMiB: 15360}, {UUID: "GPU-b", Index: 3, MemoryMiB: 15360}}
	mounts := []*pluginapi.Mount{
		{ContainerPath: "/run/gpumem/mps/pipe", HostPath: "/run/gpumem/mps/pipe", ReadOnly: true},
		{ContainerPath: "/dev/shm", HostPath: "/run/gpumem/mps/shm"},
	}
	pinned := map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/run/gpumem/mps/pipe", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M,1=3072M"}
	hook := map[string]string{"NVIDIA_GPU_MEMORY_REQUEST": "3072", "NVIDIA_GPU_MEMORY_LIMIT": "3072"}
	for _, tc := range []struct {
		level  gpu.Enforcement
		mps    bool
		env    []map[string]string
		mounts []*pluginapi.Mount
	}{
		{"", false, nil, nil},
		{gpu.EnforcementAdvisory, false, nil, nil},
		{gpu.EnforcementAdvisory, true, []map[string]string{pinned}, mounts},
		{gpu.EnforcementMPS, true, []map[string]string{pinned}, mounts},
		{gpu.EnforcementKernel, false, []map[string]string{hook}, nil},
		{gpu.EnforcementKernel, true, []map[string]string{hook, pinned}, mounts},
	} {
		t.Run(fmt.Sprint(tc.level, " with MPS ", tc.mps), func(t *testing.T) {
			want := map[string]string{"GPUMEM_ENFORCEMENT": cmp.Or(string(tc.level), "advisory")}
			for _, env := range tc.env {
				maps.Copy(want, env)
			}
			inv := gpu.Inventory{UnitMiB: 1024, Enforcement: tc.level, MPS: tc.mps}
			got := DefaultConfig().Response(gpu.Memory, allocation.Grant{Devices: devices, SlotsPerDevice: 3}, inv)
			env := got.GetEnvs()
			for name := range env {
				if !strings.HasPrefix(name, "CUDA_") && !strings.HasPrefix(name, "NVIDIA_GPU_") && name != "GPUMEM_ENFORCEMENT" {
					delete(env, name)
				}
			}
			if diff := gocmp.Diff(want, env); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(tc.mounts, got.GetMounts(), protocmp.Transform()); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
			percent := map[string]string{"GPUMEM_CORE_PERCENT": "30"}
			if tc.mps {
				percent["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "30"
			}
			cores := DefaultConfig().Response(gpu.Cores, allocation.Grant{Devices: devices, SlotsPerDevice: 30}, inv).GetEnvs()
			if diff := gocmp.Diff(percent, cores); diff != "" {
				t.Errorf("environment of cores (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAClientOnAMIGInstance expects the pipe of the MIG instance's own MPS daemon.
func TestAClientOnAMIGInstance(t *testing.T) {
	cfg := DefaultConfig()
	grant := allocation.Grant{Devices: []gpu.Device{{UUID: "MIG-a", Index: 2}}, SlotsPerDevice: 3}
	got := cfg.Response(gpu.Memory, grant, gpu.Inventory{UnitMiB: 1024, Enforcement: gpu.EnforcementMPS, MPS: true})
	pipe := "/run/gpumem/mps/MIG-a/pipe"
	if env := got.GetEnvs(); env["CUDA_MPS_PIPE_DIRECTORY"] != pipe || env["NVIDIA_VISIBLE_DEVICES"] != "MIG-a" || !cfg.servedBy(pipe) {
		t.Errorf("environment %v, a client: %t", env, cfg.servedBy(pipe))
	}
	want := []*pluginapi.Mount{{ContainerPath: pipe, HostPath: pipe, ReadOnly: true}, {ContainerPath: "/dev/shm", HostPath: "/run/gpumem/mps/shm"}}
	if diff := gocmp.Diff(want, got.GetMounts(), protocmp.Transform()); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

// TestFrameworksTakeTheirGrant multiplies the total that CUDA reports by the framework's variable, as
// frameworks do. The total is the GPU's memory or, at level kernel, the grant (NVIDIA, "MPS v3 Memory
// Partitioning": cuMemGetInfo is capped to the hard limit).
func TestFrameworksTakeTheirGrant(t *testing.T) {
	const physicalMiB, unitMiB, context = 15360, 1024, 132 // a T4
	variables := []string{"GPUMEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "PYTORCH_ALLOC_CONF", "FLAGS_fraction_of_gpu_memory_to_use"}
	cfg := DefaultConfig()
	cfg.Frameworks = []Framework{"jax", "pytorch", "paddle"}
	for _, tc := range []struct {
		level gpu.Enforcement
		total func(grantMiB float64) float64
	}{
		{gpu.EnforcementAdvisory, func(float64) float64 { return physicalMiB }},
		{gpu.EnforcementMPS, func(float64) float64 { return physicalMiB }},
		{gpu.EnforcementKernel, func(grant float64) float64 { return grant }},
	} {
		for _, units := range []int{1, 3, 15} {
			t.Run(fmt.Sprintf("%s, %d GiB", tc.level, units), func(t *testing.T) {
				grant := allocation.Grant{Devices: []gpu.Device{{UUID: "GPU-a", Model: "Tesla T4", MemoryMiB: physicalMiB}}, SlotsPerDevice: units}
				env := cfg.Response(gpu.Memory, grant, gpu.Inventory{UnitMiB: unitMiB, Enforcement: tc.level}).GetEnvs()
				shares := map[string]float64{}
				for _, name := range variables {
					shares[name] = number(t, strings.TrimPrefix(env[name], "per_process_memory_fraction:"))
				}
				granted := float64(units) * unitMiB
				for name, share := range shares {
					takes := share * tc.total(granted)
					if name != "GPUMEM_FRACTION" {
						takes += context // the framework does not count its context
					}
					if part := takes / granted; part < 0.9 || part > 1 {
						t.Errorf("by %s=%g a framework takes %.3f of its grant, want 0.9 to 1", name, share, part)
					}
				}
			})
		}
	}
}

// TestSmallGrantsFillAGPU expects that, for example, 26 programs with 3 GiB each, contexts included, fit on an
// H100 with 81559 MiB.
func TestSmallGrantsFillAGPU(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Frameworks = []Framework{"jax"}
	d := gpu.Device{UUID: "GPU-a", Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559}
	for _, level := range []gpu.Enforcement{gpu.EnforcementAdvisory, gpu.EnforcementMPS} {
		for each, programs := range map[int]float64{3: 26, 1: 79, 10: 7} {
			env := cfg.Response(gpu.Memory, allocation.Grant{Devices: []gpu.Device{d}, SlotsPerDevice: each}, gpu.Inventory{UnitMiB: 1024, Enforcement: level}).GetEnvs()
			takes := number(t, env["XLA_PYTHON_CLIENT_MEM_FRACTION"])*81559 + 132*3.3
			if takes > float64(each)*1024 || programs*takes > 81559-551 {
				t.Errorf("%s: each of %g programs takes %.0f MiB of %d GiB", level, programs, takes, each)
			}
		}
	}
}

// TestTheSizeOfAContext covers each model. For an unknown model, it expects unknownContextMiB.
func TestTheSizeOfAContext(t *testing.T) {
	for model, want := range map[string]int64{
		"Tesla T4": 132, "NVIDIA H100 80GB HBM3": 436, "NVIDIA RTX 6000 Ada Generation": 469, "NVIDIA A100-SXM4-40GB": 357, "NVIDIA A10G": 264,
		"NVIDIA A100-SXM4-40GB MIG 1g.5gb": 53, "NVIDIA A100-SXM4-40GB MIG 7g.40gb": 357, "NVIDIA Rubin": 512, "": 512,
	} {
		if got := contextMiB(gpu.Device{Model: model}); got != want {
			t.Errorf("%s: %d MiB, want %d", model, got, want)
		}
	}
}

// TestAGrantNoLargerThanAContext expects a tenth of the grant for frameworks, because no framework starts with
// zero.
func TestAGrantNoLargerThanAContext(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Frameworks = []Framework{"jax"}
	grant := allocation.Grant{Devices: []gpu.Device{{UUID: "GPU-a", Model: "NVIDIA H100", MemoryMiB: 81559}}, SlotsPerDevice: 1}
	for level, want := range map[gpu.Enforcement]string{gpu.EnforcementAdvisory: "0.0003", gpu.EnforcementKernel: "0.1000"} {
		env := cfg.Response(gpu.Memory, grant, gpu.Inventory{UnitMiB: 256, Enforcement: level}).GetEnvs()
		if got := env["XLA_PYTHON_CLIENT_MEM_FRACTION"]; got != want {
			t.Errorf("%s: %s, want %s", level, got, want)
		}
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// FuzzParse verifies that a flag's value is parsed, or rejected with an error that repeats it.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"envvar", "cdi-cri", "none", "jax,pytorch", "jax, jax", ",", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strategy, err := ParseStrategy(s); err == nil && string(strategy) != s {
			t.Errorf("strategy %q is read as %q", s, strategy)
		}
		frameworks, err := ParseFrameworks(s)
		if err != nil {
			return
		}
		for i, framework := range frameworks {
			if _, _, ok := framework.knob("0.5"); !ok || slices.Contains(frameworks[:i], framework) {
				t.Errorf("frameworks %q are read as %q", s, frameworks)
			}
		}
	})
}
