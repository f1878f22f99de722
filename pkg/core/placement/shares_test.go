package placement_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
)

// sharing returns an inventory of a T4 and an A100 in shares.
func sharing() gpu.Inventory {
	inv := placementtest.Inventory(placementtest.Device(0, 10), placementtest.Device(1, 10))
	inv.UnitMiB, inv.Devices[0].ShareMiB, inv.Devices[1].ShareMiB = 0, 1500, 8100
	return inv
}

func inShares(r placement.Request) placement.Request {
	r.InShares = true
	return r
}

// A node takes only pods that request its own kind of resource, with ten shares per GPU.
func TestNodesOfBothKinds(t *testing.T) {
	amounts, shares := placementtest.Inventory(placementtest.Device(0, 14)), sharing()
	for name, tc := range map[string]struct {
		inv  gpu.Inventory
		req  placement.Request
		want placement.Reason
	}{
		"an amount of memory":         {amounts, ask(3), placement.Fits},
		"shares, of memory":           {amounts, inShares(ask(3)), placement.OtherUnits},
		"shares":                      {shares, inShares(ask(3)), placement.Fits},
		"a whole GPU":                 {shares, inShares(ask(10)), placement.Fits},
		"more than a GPU":             {shares, inShares(ask(11)), placement.TooLarge},
		"half of each of two":         {shares, inShares(ask(10, count(2))), placement.Fits},
		"an amount, of shares":        {shares, ask(3), placement.OtherUnits},
		"before anything else counts": {shares, ask(30, placementtest.Models("H100")), placement.OtherUnits},
	} {
		t.Run(name, func(t *testing.T) {
			n := placement.NewNode("n", tc.inv, nil)
			v := placement.Fit(tc.req, n)
			if v.Reason != tc.want {
				t.Errorf("%s, want %s", v.Reason, tc.want)
			}
			if other := v.Reason == placement.OtherUnits; other != v.Unresolvable() && v.Reason != placement.TooLarge {
				t.Errorf("%s is unresolvable: %t", v.Reason, v.Unresolvable())
			}
			for _, d := range n.Devices {
				if got := n.Check(tc.req, d) == placement.OtherUnits; got != (tc.want == placement.OtherUnits) {
					t.Errorf("GPU %d: in other units: %t", d.Index, got)
				}
			}
		})
	}
	if got := nearmiss.LargestFree(placement.NewNode("n", shares, nil)); got != 10 {
		t.Errorf("the most that a pod could have is %d shares, want 10", got)
	}
}

// The kubelet allocates nothing of a resource that the node does not offer. A pod that requests this
// resource has no memory there, unless an annotation or the inventory records some.
func TestAPodOfTheOtherKindHoldsNothing(t *testing.T) {
	stranger := placementtest.Hold("stranger", ask(3))
	written := placementtest.Hold("written", ask(3), 0)
	ours := placementtest.Hold("ours", inShares(ask(2)))
	inv := sharing()
	inv.Allocated = []gpu.PodAllocation{{UID: "given", Shares: []gpu.Share{{Device: placementtest.UUID(1), Units: 4}}}}
	given := placementtest.Hold("given", ask(3))
	n := placement.NewNode("n", inv, []placement.Holding{stranger, written, ours, given})
	var got []string
	for _, h := range n.Holdings() {
		got = append(got, h.Pod.Name)
	}
	if diff := cmp.Diff([]string{"written", "given", "ours"}, got); diff != "" {
		t.Errorf("who holds something (-want +got):\n%s", diff)
	}
	empty := placement.NewNode("n", gpu.Inventory{}, []placement.Holding{ours})
	if len(empty.Unattributed) != 1 {
		t.Error("on a node that has not said what it offers, a pod holds nothing")
	}
}
