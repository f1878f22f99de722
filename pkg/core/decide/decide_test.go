package decide

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumem/gpumem/pkg/core/closest"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
)

func TestDecide(t *testing.T) {
	small, large := placementtest.Models("T4"), placementtest.Models("A10")
	inv := inventory(device(0, 14, placementtest.Model("T4")), device(1, 23, placementtest.Model("A10")))
	settled := func(h placement.Holding) placement.Holding {
		h.Admitted = true
		return h
	}
	share := func(i int, units gpu.Units) placement.Assignment {
		return placement.Assignment{Shares: []placement.Share{{Device: placementtest.UUID(i), Units: units}}}
	}
	for name, tc := range map[string]struct {
		node   placement.Node
		req    placement.Request
		want   placement.Assignment
		reason string // empty: it may go there
	}{
		"where the least stays free":                  {node(inv), ask(3), share(0, 3), ""},
		"nowhere":                                     {node(inv), ask(24), placement.Assignment{}, "TooLarge"},
		"on no GPU":                                   {placement.Node{Name: "n"}, ask(1), placement.Assignment{}, "NoDevices"},
		"not where another is to come":                {node(inv).WithNominated([]placement.Holding{hold("n", ask(14))}), ask(14), share(1, 14), ""},
		"after one that could be taken for it":        {node(inv, hold("p", ask(3, small), 0)), ask(3, large), placement.Assignment{}, Confusable},
		"not after one that is on the same GPU":       {node(inv, hold("p", ask(3, large), 1)), ask(3, placementtest.UUIDs("GPU-1")), share(1, 3), ""},
		"not after one that is interchangeable":       {node(inv, hold("p", ask(3), 1)), ask(3), share(0, 3), ""},
		"not after one that the kubelet has admitted": {node(inv, settled(hold("p", ask(3, small), 0))), ask(3, large), share(1, 3), ""},
		"after one whose GPU is not known":            {node(inv, hold("p", ask(3, small))), ask(3, large), placement.Assignment{}, Confusable},
		"not after one that is nominated":             {node(inv).WithNominated([]placement.Holding{hold("n", ask(3, small), 0)}), ask(3, large), share(1, 3), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, refusal := Decide(tc.node, placement.PodRef{Namespace: "ns", Name: "new", UID: "new"}, tc.req, placement.Binpack)
			reason := ""
			if refusal != nil {
				reason = refusal.Reason
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || reason != tc.reason {
				t.Errorf("refused for %q, want %q (-want +got):\n%s", reason, tc.reason, diff)
			}
		})
	}
}

// A node as one pod finds it is the same when it is asked for again, and what is decided on
// it is what is decided on the node itself.
func TestReservedOfAReservedNode(t *testing.T) {
	kept := 0
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 41))
		inv, holdings, req := placementtest.World(random)
		req.Priority = random.Int32N(3)
		var there, line []placement.Holding
		for _, h := range holdings {
			h.Request.Priority = random.Int32N(3)
			if random.IntN(3) == 0 {
				line = append(line, h)
			} else {
				there = append(there, h)
			}
		}
		policy := placementtest.Pick(random, placement.Binpack, placement.Spread)
		pod := placement.PodRef{Namespace: "ns", Name: "p1", UID: "p1"} // may be in line itself
		n := placement.NewNode("n", inv, there).WithNominated(line)
		once := Reserved(n, pod, req, policy)
		if once.State == nil {
			kept++
		}
		ignore := cmpopts.IgnoreUnexported(placement.State{})
		if diff := cmp.Diff(once, Reserved(once, pod, req, policy), ignore); diff != "" {
			t.Errorf("seed %d: reserved again (-once +twice):\n%s", seed, diff)
		}
		want, refused := Decide(n, pod, req, policy)
		got, again := Decide(once, pod, req, policy)
		if diff := cmp.Diff(want, got) + cmp.Diff(refused, again, ignore, cmpopts.EquateComparable(closest.Gap{})); diff != "" {
			t.Errorf("seed %d: on the node, and as the pod finds it (-node +found):\n%s", seed, diff)
		}
	}
	if kept < 100 {
		t.Errorf("something is kept for others on %d nodes, which says little", kept)
	}
}
