package nearmiss_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
)

// Short names for the tables.
var (
	device, model, inventory, node, hold = placementtest.Device, placementtest.Model, placementtest.Inventory, placementtest.Node, placementtest.Hold
	ask, cores, count, policy            = placementtest.Ask, placementtest.Cores, placementtest.Count, placementtest.Policy
	globsOf, exclusiveGroup              = placementtest.Models, placementtest.ExclusiveGroup
)

// TestGapIsNoMoreThanPodsHaveToLeave checks that no set of pods with less memory than the lack of the Gap
// makes the request fit by leaving.
func TestGapIsNoMoreThanPodsHaveToLeave(t *testing.T) {
	tried := 0
	for seed := range uint64(5000) {
		inv, holdings, req := placementtest.World(rand.New(rand.NewPCG(seed, 3)))
		coreless := func(c *placement.Container) { c.Cores = 0 } // cores count as memory in the gap
		req.Containers = req.Containers.Each(coreless)
		for i, h := range holdings {
			holdings[i].Request.Containers = h.Request.Containers.Each(coreless)
		}
		n := placement.NewNode("n", inv, holdings)
		if v := placement.Fit(req, n); v.Reason < placement.Occupied || req.GPUs() > 1 && len(n.Unattributed) > 0 {
			continue // the GPU of an unattributed pod is unknown
		}
		tried++
		gap := nearmiss.GapOf(placement.Fit(req, n))
		for set := range 1 << len(holdings) {
			var leave []placement.Holding
			held := gpu.Units(0)
			for i, h := range holdings {
				if set&(1<<i) != 0 {
					leave, held = append(leave, h), held+h.Request.Units()
				}
			}
			// A full GPU that is a MiB larger than the leaving pods lacks more.
			most := held*gpu.Units(n.UnitMiB) + 1
			more := placement.NewNode("more", gpu.Inventory{UnitMiB: 1, Devices: []gpu.Device{device(0, most)}}, []placement.Holding{hold("x", ask(most), 0)})
			if placement.Fit(req, n.Without(leave)).Fits() && held > 0 && gap.Compare(nearmiss.GapOf(placement.Fit(ask(most), more))) >= 0 {
				t.Errorf("seed %d: pods of %d units are enough, and the gap is %+v", seed, held, gap)
			}
		}
	}
	if tried < 100 {
		t.Errorf("%d tries say little", tried)
	}
}

// Of nodes without room, the closest is the one that needs the least freed memory.
func TestGap(t *testing.T) {
	two := inventory(device(0, 14), device(1, 14))
	large := inventory(device(0, 79), device(1, 14))
	alone := policy(placement.Exclusive)
	for name, tc := range map[string]struct {
		req            placement.Request
		closer, others placement.Node
	}{
		"one unit of one GPU": {ask(28, count(2)),
			node(two, hold("a", ask(1), 0)), node(large, hold("b", ask(11), 1))},
		"the pods of one GPU, for a pod that wants two alone": {ask(28, count(2), alone),
			node(two, hold("a", ask(1), 0)), node(large, hold("b", ask(20), 0), hold("c", ask(11), 1))},
		"the GPUs that pass count": {ask(10, globsOf("Tesla*")),
			node(inventory(device(0, 14, model("Tesla T4"))), hold("a", ask(5), 0)), node(inventory(device(0, 14, model("Tesla T4")), device(1, 79)), hold("b", ask(14), 0))},
		"of equals, the one with more free in all": {ask(3),
			node(two, hold("a", ask(12), 0), hold("b", ask(12), 1)), node(two, hold("c", ask(14), 0), hold("d", ask(12), 1))},
		"what pods can leave before what is too small": {ask(20),
			node(inventory(device(0, 20)), hold("a", ask(20), 0)), node(two)},
		"a wider glob is enough": {ask(1, globsOf("Tesla")),
			node(inventory(device(0, 14, model("Tesla T4")))), node(inventory(device(0, 79)))},
		"of GPUs that are too small, the largest": {ask(80), node(large, hold("a", ask(79), 0)), node(two)},
		"a GPU that is too small is none": {ask(12),
			node(inventory(device(0, 80)), hold("a", ask(71), 0)), node(inventory(device(0, 10), device(1, 80)), hold("b", ask(80), 1))},
		"pods on no known GPU count whole": {ask(20),
			node(inventory(device(0, 80)), hold("a", ask(61), 0)), node(inventory(device(0, 40), device(1, 40)), hold("b", ask(40, count(2))))},
		"one small pod that is alone": {ask(60),
			node(inventory(device(0, 80)), hold("a", ask(2, alone), 0)), node(inventory(device(0, 80)), hold("b", ask(30), 0))},
		"one small pod of the same exclusive group": {ask(20, exclusiveGroup("t")),
			node(inventory(device(0, 80)), hold("a", ask(1, exclusiveGroup("t")), 0), hold("b", ask(59), 0)), node(inventory(device(0, 80)), hold("c", ask(70), 0))},
		"a little memory before all cores": {ask(8, cores(10)),
			node(inventory(device(0, 80)), hold("a", ask(73), 0)), node(inventory(device(0, 80)), hold("b", ask(40, cores(100)), 0))},
		"it fits": {ask(8), node(two), node(inventory(device(0, 8)), hold("a", ask(1), 0))},
	} {
		closer, others := nearmiss.GapOf(placement.Fit(tc.req, tc.closer)), nearmiss.GapOf(placement.Fit(tc.req, tc.others))
		if closer.Compare(others) >= 0 || others.Compare(closer) <= 0 {
			t.Errorf("%s: %+v does not come before %+v", name, closer, others)
		}
	}
}
