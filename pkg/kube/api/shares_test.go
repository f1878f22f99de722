package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

func TestRequestsInShares(t *testing.T) {
	shares := func(units gpu.Units, count int) placement.Request {
		return placement.Request{Containers: placement.NewContainers(placement.Container{Name: "main", Kind: placement.App, Units: units}), InShares: true, Count: count}
	}
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		want placement.Request
		err  string
	}{
		"three":                 {pod(container("main", "gpu-share", "3")), shares(3, 0), ""},
		"of two GPUs":           {annotated(pod(container("main", "gpu-share", "6")), "gpu-count", "2"), shares(6, 2), ""},
		"none":                  {pod(container("main", "gpu-share", "0")), placement.Request{}, ""},
		"a part of one":         {pod(container("main", "gpu-share", "500m")), placement.Request{}, `container "main": gpumem.dev/gpu-share is 500m, want a whole number`},
		"and memory":            {pod(container("main", "gpu-share", "3", "gpu-mem", "4")), placement.Request{}, "the pod asks for both gpumem.dev/gpu-mem and gpumem.dev/gpu-share"},
		"and memory, elsewhere": {pod(container("main", "gpu-share", "3"), container("other", "gpu-mem", "4")), placement.Request{}, "the pod asks for both"},
		"and none of memory":    {pod(container("main", "gpu-share", "3", "gpu-mem", "0")), shares(3, 0), ""},
		"and cores":             {pod(container("main", "gpu-share", "3", "gpu-core", "30")), placement.Request{}, `container "main": gpumem.dev/gpu-share includes cores`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := names(t).Request(tc.pod)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	h, err := names(t).Holding(pod(container("main", "gpu-share", "3", "gpu-mem", "4")))
	if err == nil || h.Request.InShares || h.Request.Units() != 4 {
		t.Errorf("a pod that asks for both counts %d, in shares %t, error %v", h.Request.Units(), h.Request.InShares, err)
	}
	both := pod(container("main", "gpu-share", "3"))
	if n := names(t); !n.Holds(both) || !n.HoldsHere(both, true) || n.HoldsHere(both, false) || len(n.Unoffered(both, func(v1.ResourceName) bool { return false })) > 0 {
		t.Error("a pod with shares is not known, or holds some of a node that offers none")
	}
}

// Readers that do not support shares reject such an inventory, because its unit is 0.
func TestInventoryInShares(t *testing.T) {
	inv := func(change ...func(*gpu.Inventory)) gpu.Inventory {
		out := gpu.Inventory{Devices: []gpu.Device{
			{UUID: "GPU-a", Index: 0, MemoryMiB: 15360, Allocatable: 10, ShareMiB: 1490, NUMANode: -1},
			{UUID: "GPU-b", Index: 1, MemoryMiB: 81920, Allocatable: 10, ShareMiB: 8140, Foreign: 1, NUMANode: -1},
		}}
		for _, c := range change {
			c(&out)
		}
		return out
	}
	text, err := EncodeInventory(inv())
	const want = `{"v":1,"unitMiB":0,"gpus":[{"uuid":"GPU-a","index":0,"memoryMiB":15360,"units":10,"shareMiB":1490,"healthy":true},` +
		`{"uuid":"GPU-b","index":1,"memoryMiB":81920,"units":10,"shareMiB":8140,"foreign":1,"healthy":true}]}`
	if text != want || err != nil {
		t.Errorf("%s\nwant\n%s\nerror %v", text, want, err)
	}
	got, err := names(t).InventoryOf(&v1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"gpumem.dev/inventory": text}}})
	if diff := cmp.Diff(inv(), got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if !got.InShares() || (gpu.Inventory{}).InShares() {
		t.Error("it is not known what is offered in shares")
	}
	for name, wrong := range map[string]gpu.Inventory{
		"a unit beside":        inv(func(i *gpu.Inventory) { i.UnitMiB = 1024 }),
		"one GPU not":          inv(func(i *gpu.Inventory) { i.Devices[1].ShareMiB = 0 }),
		"less than nothing":    inv(func(i *gpu.Inventory) { i.Devices[1].ShareMiB = -1 }),
		"eleven":               inv(func(i *gpu.Inventory) { i.Devices[0].Allocatable, i.Devices[0].ShareMiB = 11, 1000 }),
		"more than the memory": inv(func(i *gpu.Inventory) { i.Devices[0].ShareMiB = 1600 }),
		"of no known size":     {Devices: []gpu.Device{{UUID: "GPU-a", MemoryMiB: 15360, Allocatable: 10}}},
	} {
		if err := ValidateInventory(wrong); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
