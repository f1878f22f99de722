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
