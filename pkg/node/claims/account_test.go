package claims

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

func TestWhatPodsHaveByClaims(t *testing.T) {
	by := func(c *resourceapi.ResourceClaim, pods ...string) *resourceapi.ResourceClaim {
		for _, pod := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID("uid-of-" + pod)})
		}
		return c
	}
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	given, known, changed := r.Allocations()
	if len(given) > 0 || !known {
		t.Errorf("of no claims: %v, known %t", given, known)
	}
	for _, claim := range []*resourceapi.ResourceClaim{
		by(allocated("a", result(gpuA, 3, 20)), "p"),
		by(allocated("b", result(gpuB, 2, 0), result(gpuA, 2, 0)), "p", "q"),
		allocated("c", result(gpuB, 1, 0)),
	} {
		if got := r.one(t, claim); got.Err != nil {
			t.Fatal(got.Err)
		}
	}
	select {
	case <-changed:
	default:
		t.Error("no reader hears of it")
	}
	given, _, _ = r.Allocations()
	want := []gpu.PodAllocation{
		{UID: "uid-c", Namespace: "ml", Name: "c", Shares: []gpu.Share{{Device: plugintest.GPUB, Units: 1}}},
		{UID: "uid-of-p", Namespace: "ml", Name: "p", Shares: []gpu.Share{{Device: plugintest.GPUA, Units: 5, Cores: 20}, {Device: plugintest.GPUB, Units: 2}}},
	}
	if diff := cmp.Diff(want, given); diff != "" {
		t.Error(diff)
	}
	again := newRig(t, plugintest.TwoGPUs(), r.disk)
	if given, _, _ := again.Allocations(); !cmp.Equal(want, given) {
		t.Errorf("after a restart: %v", given)
	}
	if err := r.undo(t, "uid-a"); err != nil {
		t.Fatal(err)
	}
	if given, _, _ := r.Allocations(); given[1].Shares[0].Units != 2 {
		t.Errorf("after one was given back: %v", given)
	}
}

// Readers of the inventory interpret all amounts in the node's current unit.
func TestWhatPodsHaveIsInTheUnitOfTheNode(t *testing.T) {
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	if got := r.one(t, allocated("a", result(gpuA, 3, 20))); got.Err != nil {
		t.Fatal(got.Err)
	}
	for unit, want := range map[int64]gpu.Units{512: 6, 1024: 3, 2048: 2, 100: 31} {
		inv := plugintest.TwoGPUs()
		inv.UnitMiB = unit
		given, _, _ := newRig(t, inv, r.disk).Allocations()
		if got := given[0].Shares[0].Units; got != want {
			t.Errorf("3 GiB are %d units of %d MiB, want %d", got, unit, want)
		}
	}
}
