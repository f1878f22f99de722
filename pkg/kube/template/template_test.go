package template

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

func TestInventory(t *testing.T) {
	names := kubetest.Names(t)
	annotation, err := api.EncodeInventory(gpu.Inventory{UnitMiB: 512, Devices: []gpu.Device{{UUID: "GPU-1", Allocatable: 8, MemoryMiB: 8192, NUMANode: -1}}})
	if err != nil {
		t.Fatal(err)
	}
	alike := func(n int, model string, units gpu.Units, memory int64) (out []gpu.Device) {
		for i := range n {
			out = append(out, gpu.Device{
				UUID: gpu.UUID("GPU-template-" + string(rune('0'+i))), Index: i, Model: model,
				MemoryMiB: memory, Allocatable: units, NUMANode: -1,
			})
		}
		return out
	}
	const count, memory, product = "nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/gpu.product"
	for name, tc := range map[string]struct {
		labels      map[string]string
		annotation  string
		allocatable string
		want        gpu.Inventory
		wantErr     string
	}{
		"labels of GPU feature discovery": {
			labels: map[string]string{count: "2", memory: "15360", product: "Tesla-T4"}, allocatable: "28",
			want: gpu.Inventory{UnitMiB: 1024, Devices: alike(2, "Tesla-T4", 14, 15360)},
		},
		"units of 256 MiB": {
			labels: map[string]string{count: "1", memory: "24564", product: "NVIDIA-L4"}, allocatable: "93", want: gpu.Inventory{UnitMiB: 256, Devices: alike(1, "NVIDIA L4", 93, 24564)},
		},
		"no amount of memory": {
			labels: map[string]string{count: "4"}, allocatable: "320", want: gpu.Inventory{UnitMiB: 1024, Devices: alike(4, "", 80, 81920)},
		},
		"less memory than units": {
			labels: map[string]string{count: "1", memory: "15"}, allocatable: "16", want: gpu.Inventory{UnitMiB: 1024, Devices: alike(1, "", 16, 16384)},
		},
		"what does not divide is not offered": {
			labels: map[string]string{count: "2", memory: "15360"}, allocatable: "29", want: gpu.Inventory{UnitMiB: 1024, Devices: alike(2, "", 14, 15360)},
		},
		"the annotation counts for more": {
			labels: map[string]string{count: "2"}, annotation: annotation, allocatable: "28",
			want: gpu.Inventory{UnitMiB: 512, Devices: []gpu.Device{{UUID: "GPU-1", Allocatable: 8, MemoryMiB: 8192, NUMANode: -1}}},
		},
		"a broken annotation":       {annotation: "{", wantErr: "annotation gpumem.dev/inventory"},
		"no count":                  {labels: map[string]string{memory: "15360"}, allocatable: "28"},
		"no resource":               {labels: map[string]string{count: "2", memory: "15360"}},
		"fewer units than GPUs":     {labels: map[string]string{count: "2"}, allocatable: "1"},
		"a count that is a word":    {labels: map[string]string{count: "two"}, allocatable: "28", wantErr: `label nvidia.com/gpu.count: "two": want a number from 0 to 1024`},
		"a negative count":          {labels: map[string]string{count: "-1"}, allocatable: "28", wantErr: "from 0 to 1024"},
		"too many GPUs":             {labels: map[string]string{count: "1025"}, allocatable: "28", wantErr: "from 0 to 1024"},
		"memory that is no number":  {labels: map[string]string{count: "2", memory: "15Gi"}, allocatable: "28", wantErr: `label nvidia.com/gpu.memory: "15Gi"`},
		"more units than can be":    {labels: map[string]string{count: "1"}, allocatable: "1e18", wantErr: "allocatable gpumem.dev/gpu-mem is 1e18"},
		"fewer than no units":       {labels: map[string]string{count: "1"}, allocatable: "-1", wantErr: "allocatable gpumem.dev/gpu-mem is -1"},
		"nothing is said of it":     {},
		"a count and nothing of it": {labels: map[string]string{count: "0"}, allocatable: "28"},
	} {
		t.Run(name, func(t *testing.T) {
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "template", Labels: tc.labels}}
			if tc.annotation != "" {
				node.Annotations = map[string]string{"gpumem.dev/inventory": tc.annotation}
			}
			if tc.allocatable != "" {
				node.Status.Allocatable = v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse(tc.allocatable)}
			}
			got, err := Inventory(names, node)
			if (err != nil) != (tc.wantErr != "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("error %v, want one with %q", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("inventory (-want +got):\n%s", diff)
			}
			if err := api.ValidateInventory(got); len(got.Devices) > 0 && err != nil {
				t.Errorf("it is not valid: %v", err)
			}
		})
	}
}
