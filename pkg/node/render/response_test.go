package render

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

func TestResponse(t *testing.T) {
	t4 := gpu.Device{Model: "Tesla T4", UUID: "GPU-a", Index: 2, MemoryMiB: 15360}
	a100 := gpu.Device{UUID: "GPU-b", Index: 3, MemoryMiB: 81920}
	numbers := map[string]string{
		"GPUMEM_GPU_INDEX": "2", "GPUMEM_GPU_UUID": "GPU-a", "GPUMEM_GPU_MIB": "15360",
		"GPUMEM_LIMIT_MIB": "2048", "GPUMEM_FRACTION": "0.1266", "GPUMEM_ENFORCEMENT": "advisory",
	}
	with := func(more map[string]string) map[string]string {
		out := maps.Clone(numbers)
		maps.Copy(out, more)
		return out
	}
	for _, tc := range []struct {
		name       string
		grant      allocation.Grant
		kind       string
		unitMiB    int64
		strategy   Strategy
		frameworks string
		want       *pluginapi.ContainerAllocateResponse
	}{
		{
			name: "by environment, for all frameworks", grant: allocation.Grant{Devices: []gpu.Device{t4}, SlotsPerDevice: 2}, unitMiB: 1024,
			strategy: Envvar, frameworks: "jax,pytorch,paddle",
			want: &pluginapi.ContainerAllocateResponse{Envs: with(map[string]string{
				"NVIDIA_VISIBLE_DEVICES":              "GPU-a",
				"XLA_PYTHON_CLIENT_MEM_FRACTION":      "0.1180",
				"PYTORCH_ALLOC_CONF":                  "per_process_memory_fraction:0.1180",
				"FLAGS_fraction_of_gpu_memory_to_use": "0.1180",
			})},
		},
		{
			name: "by mounts, for none", grant: allocation.Grant{Devices: []gpu.Device{t4}, SlotsPerDevice: 2}, unitMiB: 1024,
			strategy: VolumeMounts, frameworks: "none",
			want: &pluginapi.ContainerAllocateResponse{
				Envs:   with(map[string]string{"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}),
				Mounts: []*pluginapi.Mount{{ContainerPath: "/var/run/nvidia-container-devices/GPU-a", HostPath: "/dev/null"}},
			},
		},
		{
			name: "by CDI", grant: allocation.Grant{Devices: []gpu.Device{t4}, SlotsPerDevice: 2}, unitMiB: 1024,
			strategy: CDICRI, frameworks: "jax",
			want: &pluginapi.ContainerAllocateResponse{
				Envs:       with(map[string]string{"NVIDIA_VISIBLE_DEVICES": "void", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1180"}),
				CdiDevices: []*pluginapi.CDIDevice{{Name: "nvidia.com/gpu=GPU-a"}},
			},
		},
		{
			name: "by CDI, of a kind of our own", grant: allocation.Grant{Devices: []gpu.Device{t4}, SlotsPerDevice: 2}, unitMiB: 1024,
			strategy: CDICRI, kind: "gpumem.dev/gpu", frameworks: "none",
			want: &pluginapi.ContainerAllocateResponse{
				Envs:       with(map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}),
				CdiDevices: []*pluginapi.CDIDevice{{Name: "gpumem.dev/gpu=GPU-a"}},
			},
		},
		{
			name: "two unlike GPUs, by annotations: one fraction that suits both", grant: allocation.Grant{Devices: []gpu.Device{t4, a100}, SlotsPerDevice: 8}, unitMiB: 256,
			strategy: CDIAnnotations, frameworks: "none",
			want: &pluginapi.ContainerAllocateResponse{
				Envs: map[string]string{
					"NVIDIA_VISIBLE_DEVICES": "void", "GPUMEM_GPU_INDEX": "2,3", "GPUMEM_GPU_UUID": "GPU-a,GPU-b", "GPUMEM_GPU_MIB": "15360,81920",
					"GPUMEM_LIMIT_MIB": "2048", "GPUMEM_FRACTION": "0.0237", "GPUMEM_ENFORCEMENT": "advisory",
				},
				Annotations: map[string]string{"cdi.k8s.io/gpumem": "nvidia.com/gpu=GPU-a,nvidia.com/gpu=GPU-b"},
			},
		},
		{
			name: "next to nothing sets no framework to nothing", grant: allocation.Grant{Devices: []gpu.Device{a100}, SlotsPerDevice: 1}, unitMiB: 1,
			strategy: Envvar, frameworks: "jax,pytorch,paddle",
			want: &pluginapi.ContainerAllocateResponse{Envs: map[string]string{
				"NVIDIA_VISIBLE_DEVICES": "GPU-b", "GPUMEM_GPU_INDEX": "3", "GPUMEM_GPU_UUID": "GPU-b", "GPUMEM_GPU_MIB": "81920",
				"GPUMEM_LIMIT_MIB": "1", "GPUMEM_FRACTION": "0.0000", "GPUMEM_ENFORCEMENT": "advisory",
			}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			frameworks, err := ParseFrameworks(tc.frameworks)
			if err != nil {
				t.Fatal(err)
			}
			got := Config{Strategy: tc.strategy, CDIKind: tc.kind, Frameworks: frameworks}.Response(gpu.Memory, tc.grant, gpu.Inventory{UnitMiB: tc.unitMiB})
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("response (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFraction(t *testing.T) {
	for _, tc := range []struct {
		part, whole int64
		want        string
	}{
		{1, 3, "0.3333"}, {2, 3, "0.6666"}, {0, 5, "0.0000"}, {81919, 81920, "0.9999"},
		{5, 5, "1.0000"}, {6, 5, "1.0000"}, {1, 0, "1.0000"}, {1, 16, "0.0625"}, {1, 1000, "0.0010"},
	} {
		if got := fraction(tc.part, tc.whole); got != tc.want {
			t.Errorf("fraction(%d, %d) = %s, want %s", tc.part, tc.whole, got, tc.want)
		}
	}
}

func TestParse(t *testing.T) {
	if _, err := ParseStrategy("cdi"); err == nil {
		t.Error("a strategy that is none was taken")
	}
	if _, err := ParseFrameworks("jax,torch,caffe"); err == nil {
		t.Error("frameworks that are none were taken")
	}
	if _, err := ParseFrameworks(""); err == nil {
		t.Error("an empty list was taken for none")
	}
	got, err := ParseFrameworks("jax, pytorch,jax")
	if diff := cmp.Diff([]Framework{"jax", "pytorch"}, got); diff != "" || err != nil {
		t.Errorf("frameworks (-want +got), %v:\n%s", err, diff)
	}
}

// A share includes a part of the memory and, if Config.ShareCores is true, of the cores. On GPUs of different
// sizes, a container has the same amount on each GPU: its shares of the smallest GPU.
func TestResponseInShares(t *testing.T) {
	t4 := gpu.Device{UUID: "GPU-a", Index: 0, MemoryMiB: 15360, Allocatable: 10, ShareMiB: 1500}
	a100 := gpu.Device{UUID: "GPU-b", Index: 1, MemoryMiB: 81920, Allocatable: 10, ShareMiB: 8000}
	for name, tc := range map[string]struct {
		devices []gpu.Device
		cores   bool
		mps     bool
		want    map[string]string
		without []string
	}{
		"of a small one":  {[]gpu.Device{t4}, false, false, map[string]string{"GPUMEM_LIMIT_MIB": "4500", "GPUMEM_FRACTION": "0.2783"}, []string{"GPUMEM_CORE_PERCENT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}},
		"of a large one":  {[]gpu.Device{a100}, true, false, map[string]string{"GPUMEM_LIMIT_MIB": "24000", "GPUMEM_CORE_PERCENT": "30"}, []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}},
		"with MPS":        {[]gpu.Device{t4}, true, true, map[string]string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4500M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}, nil},
		"cores are off":   {[]gpu.Device{t4}, false, true, map[string]string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4500M"}, []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}},
		"of both of them": {[]gpu.Device{t4, a100}, true, true, map[string]string{"GPUMEM_LIMIT_MIB": "4500", "GPUMEM_FRACTION": "0.0521", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4500M,1=4500M"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.ShareCores = tc.cores
			got := cfg.Response(gpu.Memory, allocation.Grant{Devices: tc.devices, SlotsPerDevice: 3}, gpu.Inventory{Devices: tc.devices, MPS: tc.mps}).GetEnvs()
			for key, want := range tc.want {
				if got[key] != want {
					t.Errorf("%s is %q, want %q", key, got[key], want)
				}
			}
			for _, key := range tc.without {
				if value, set := got[key]; set {
					t.Errorf("%s is %q", key, value)
				}
			}
		})
	}
	inShares, inUnits := allocation.Grant{Devices: []gpu.Device{t4}, SlotsPerDevice: 3}, allocation.Grant{Devices: []gpu.Device{{UUID: "GPU-a", MemoryMiB: 15360}}, SlotsPerDevice: 3}
	for _, tc := range []struct {
		name  string
		cores bool
		grant allocation.Grant
		want  int
	}{
		{"shares include no cores", false, inShares, 100},
		{"shares include cores", true, inShares, 30},
		{"an amount of memory includes all cores", true, inUnits, 100},
		{"no GPU", true, allocation.Grant{}, 100},
	} {
		if got := (Config{ShareCores: tc.cores}).Percent(tc.grant); got != tc.want {
			t.Errorf("%s: %d percent of the cores, want %d", tc.name, got, tc.want)
		}
	}
}
