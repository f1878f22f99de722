package placement_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
)

// GPUs offered by claims are part of the node, and no pod gets them by the extended resource, even if they
// are empty.
func TestGPUsByClaims(t *testing.T) {
	device := func(id gpu.UUID, index int, byClaims bool) gpu.Device {
		return gpu.Device{UUID: id, Index: index, MemoryMiB: 15360, Allocatable: 14, Status: gpu.Status{ByClaims: byClaims}}
	}
	inv := gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{device("GPU-a", 0, true), device("GPU-b", 1, true)}, Allocated: []gpu.PodAllocation{
		{UID: "u", Namespace: "ml", Name: "p", Shares: []gpu.Share{{Device: "GPU-a", Units: 5, Cores: 30}, {Device: "GPU-b", Units: 2}}},
		{UID: "other", Shares: []gpu.Share{{Device: "GPU-a", Units: 1}}}, // a pod with annotations that is not on the node
	}}
	// The watch of pods shows the same pod, which holds only CPU.
	n := placement.NewNode("n", inv, []placement.Holding{{Pod: placement.PodRef{Namespace: "ml", Name: "p", UID: "u"}, Request: placement.Request{CPU: 500}}})
	if diff := cmp.Diff([]gpu.Units{5, 2, 7, 0}, []gpu.Units{n.Devices[0].Requested, n.Devices[1].Requested, placementtest.Requested(n), nearmiss.LargestFree(n)}); diff != "" {
		t.Error("requested of each and of all, largest free:", diff)
	}
	if n.Devices[0].RequestedCores != 30 || n.RequestedCPU != 500 || len(n.Unattributed) > 0 || len(n.Holdings()) != 1 || n.Holdings()[0].Pod.String() != "ml/p" {
		t.Errorf("%+v", n)
	}
	if n.Devices[0].Advertised() {
		t.Error("the kubelet is taken to offer it")
	}
	if n.Devices[0].Status.TakesPods() {
		t.Error("a GPU for claims takes pods")
	}
	if unseen := placement.NewNode("n", inv, nil); unseen.Devices[0].Requested != 5 || unseen.Devices[1].Requested != 2 {
		t.Errorf("before the watch has shown the pod, %d and %d units are requested, want 5 and 2", unseen.Devices[0].Requested, unseen.Devices[1].Requested)
	}
	for _, units := range []gpu.Units{1, 14, 15} {
		r := placement.Request{Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: units})}
		if chosen, v := placement.Choose(placement.Binpack, r, n); len(chosen.Shares) > 0 || v.Reason != placement.NoDevices {
			t.Errorf("a pod of %d units gets %v: %s", units, chosen, v.Reason)
		}
	}
	inv.Devices = slices.Clone(inv.Devices)
	inv.Devices[1].Status.ByClaims = false
	n = placement.NewNode("n", inv, nil)
	r := placement.Request{Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: 12})}
	if chosen, v := placement.Choose(placement.Binpack, r, n); len(chosen.Shares) != 1 || chosen.Shares[0].Device != "GPU-b" {
		t.Errorf("of two GPUs, one of them by claims, the pod gets %v: %s", chosen, v.Reason)
	}
}
