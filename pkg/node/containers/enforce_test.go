package containers

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
)

func TestWhatEnforcesAGrant(t *testing.T) {
	devices := []gpu.Device{{UUID: "GPU-a", MemoryMiB: 15360}, {UUID: "GPU-b", Index: 3, MemoryMiB: 15360}}
	mounts := []*pluginapi.Mount{
		{ContainerPath: "/run/gpumem/mps/pipe", HostPath: "/run/gpumem/mps/pipe", ReadOnly: true},
		{ContainerPath: "/dev/shm", HostPath: "/run/gpumem/mps/shm"},
	}
	for _, tc := range []struct {
		level  gpu.Enforcement
		env    map[string]string
		mounts []*pluginapi.Mount
		cores  map[string]string
	}{
		{"", map[string]string{"GPUMEM_ENFORCEMENT": "advisory"}, nil, map[string]string{"GPUMEM_CORE_PERCENT": "30"}},
		{gpu.EnforcementAdvisory, map[string]string{"GPUMEM_ENFORCEMENT": "advisory"}, nil, map[string]string{"GPUMEM_CORE_PERCENT": "30"}},
		{gpu.EnforcementMPS, map[string]string{
			"GPUMEM_ENFORCEMENT": "mps", "CUDA_MPS_PIPE_DIRECTORY": "/run/gpumem/mps/pipe", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M,1=3072M",
		}, mounts, map[string]string{"GPUMEM_CORE_PERCENT": "30", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}},
		{gpu.EnforcementKernel, map[string]string{
			"GPUMEM_ENFORCEMENT": "kernel", "CUDA_MPS_PIPE_DIRECTORY": "/run/gpumem/mps/pipe", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M,1=3072M",
			"NVIDIA_GPU_MEMORY_REQUEST": "3072", "NVIDIA_GPU_MEMORY_LIMIT": "3072",
		}, mounts, map[string]string{"GPUMEM_CORE_PERCENT": "30", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}},
	} {
		t.Run(string(tc.level), func(t *testing.T) {
			inv := gpu.Inventory{UnitMiB: 1024, Enforcement: tc.level}
			got := DefaultConfig().Response(gpu.Memory, allocation.Grant{Devices: devices, Each: 3}, inv)
			env := got.GetEnvs()
			for name := range env {
				if !strings.HasPrefix(name, "CUDA_") && !strings.HasPrefix(name, "NVIDIA_GPU_") && name != "GPUMEM_ENFORCEMENT" {
					delete(env, name)
				}
			}
			if diff := cmp.Diff(tc.env, env); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.mounts, got.GetMounts(), protocmp.Transform()); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
			cores := DefaultConfig().Response(gpu.Cores, allocation.Grant{Devices: devices, Each: 30}, inv).GetEnvs()
			if diff := cmp.Diff(tc.cores, cores); diff != "" {
				t.Errorf("environment of cores (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzParse: what a flag may say is read, or refused with words that repeat it.
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
