package decide

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
)

// Short names for the tables.
var (
	device, inventory, node = placementtest.Device, placementtest.Inventory, placementtest.Node
	hold, terminating       = placementtest.Hold, placementtest.Terminating
	ask, priority           = placementtest.Ask, placementtest.Priority
)

func TestReserved(t *testing.T) {
	inv := inventory(device(0, 10), device(1, 10))
	nominated := func(name string, r placement.Request) placement.Holding { return hold(name, r) }
	tests := map[string]struct {
		pods      []placement.Holding
		nominated []placement.Holding
		pod       string
		req       placement.Request
		want      []gpu.Units // requested units by device
	}{
		"a higher priority holds": {
			nominated: []placement.Holding{nominated("n", ask(4, priority(5)))}, pod: "p", req: ask(1), want: []gpu.Units{4, 0},
		},
		"the same priority holds": {
			nominated: []placement.Holding{nominated("n", ask(4, priority(5)))}, pod: "p", req: ask(1, priority(5)), want: []gpu.Units{4, 0},
		},
		"a lower priority does not": {
			nominated: []placement.Holding{nominated("n", ask(4, priority(5)))}, pod: "p", req: ask(1, priority(6)), want: []gpu.Units{0, 0},
		},
		"a pod holds nothing against itself": {
			nominated: []placement.Holding{nominated("p", ask(4, priority(5)))}, pod: "p", req: ask(4, priority(5)), want: []gpu.Units{0, 0},
		},
		"of equals in line the first does not wait for the second": {
			nominated: []placement.Holding{nominated("b", ask(4)), nominated("a", ask(4))}, pod: "a", req: ask(4), want: []gpu.Units{0, 0},
		},
		"of equals in line the second waits for the first": {
			nominated: []placement.Holding{nominated("b", ask(4)), nominated("a", ask(4))}, pod: "b", req: ask(4), want: []gpu.Units{4, 0},
		},
		"one after the other, the highest priority first": {
			nominated: []placement.Holding{nominated("a", ask(7, priority(1))), nominated("b", ask(4, priority(2)))}, pod: "p", req: ask(1), want: []gpu.Units{4, 7},
		},
		"on the GPU where room is being made": {
			pods:      []placement.Holding{hold("a", ask(8, priority(2)), 0), terminating(hold("b", ask(8, priority(2)), 1))},
			nominated: []placement.Holding{nominated("n", ask(4, priority(5)))}, pod: "p", req: ask(1), want: []gpu.Units{8, 12},
		},
		"where it would fit at no cost by now": {
			pods:      []placement.Holding{hold("a", ask(5, priority(2)), 0), terminating(hold("b", ask(8, priority(2)), 1))},
			nominated: []placement.Holding{nominated("n", ask(4, priority(5)))}, pod: "p", req: ask(1), want: []gpu.Units{9, 8},
		},
		"on the GPU that it is nominated to, whoever is there": {
			pods:      []placement.Holding{hold("a", ask(5), 0), hold("b", ask(5), 1)},
			nominated: []placement.Holding{hold("n", ask(8), 1)}, pod: "p", req: ask(1), want: []gpu.Units{5, 13},
		},
		"on the GPU that it is nominated to, though it would fit elsewhere": {
			nominated: []placement.Holding{hold("n", ask(8), 1)}, pod: "p", req: ask(1), want: []gpu.Units{0, 8},
		},
		"of equals in line one goes first that is nominated to a GPU": {
			nominated: []placement.Holding{hold("a", ask(6)), hold("b", ask(10), 0)}, pod: "a", req: ask(6), want: []gpu.Units{10, 0},
		},
		"of equals in line that are nominated to other GPUs none takes another's": {
			nominated: []placement.Holding{hold("a", ask(6), 0), hold("b", ask(10), 1)}, pod: "a", req: ask(6), want: []gpu.Units{0, 10},
		},
		"of equals in line that are nominated to one GPU the first does not wait": {
			nominated: []placement.Holding{hold("a", ask(6), 0), hold("b", ask(10), 0)}, pod: "a", req: ask(6), want: []gpu.Units{0, 0},
		},
		"one that no eviction helps holds nothing": {
			nominated: []placement.Holding{nominated("n", ask(11, priority(5)))}, pod: "p", req: ask(1), want: []gpu.Units{0, 0},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := node(inv, tc.pods...).WithNominated(tc.nominated)
			after := Reserved(before, placement.PodRef{Namespace: "ns", Name: tc.pod, UID: tc.pod}, tc.req, placement.Binpack)
			var got []gpu.Units
			for _, d := range after.Devices {
				got = append(got, d.Requested)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("requested (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(node(inv, tc.pods...).WithNominated(tc.nominated), before); diff != "" {
				t.Errorf("the node has changed (-before +after):\n%s", diff)
			}
		})
	}
}
