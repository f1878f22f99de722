package decide

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
)

// A refusal is temporary if the pod fits after the node has admitted its pods and published their final
// GPUs.
func TestTemporary(t *testing.T) {
	two := inventory(device(0, 10), device(1, 10))
	moved := hold("moved", ask(6), 0)
	moved.Assignment.Leaving = []gpu.UUID{placementtest.UUID(1)}
	gone := hold("gone", ask(6), 7)
	for name, tc := range map[string]struct {
		node placement.Node
		req  placement.Request
		want bool
	}{
		"one that it could be taken for":                 {node(two, hold("p", ask(3, placementtest.Models("A10")), 0)), ask(3, placementtest.UUIDs("GPU-1")), true},
		"one that is not placed":                         {node(two, hold("p", ask(6))), ask(6), true},
		"one that is not placed, and too large for both": {node(two, hold("p", ask(6))), ask(6, placementtest.Count(2), placementtest.Policy(placement.Exclusive)), false},
		"one that is moved":                              {node(two, moved), ask(6), true},
		"two that are moved and not placed":              {node(two, moved, hold("p", ask(4))), ask(10), true},
		"one whose GPU is gone":                          {node(two, gone), ask(6), false},
		"full":                                           {node(two, hold("p", ask(6), 0), hold("q", ask(6), 1)), ask(6), false},
		"too large":                                      {node(two, hold("p", ask(6))), ask(11), false},
	} {
		_, refusal := Decide(tc.node, placement.PodRef{Namespace: "ns", Name: "new", UID: "new"}, tc.req, placement.Binpack)
		if refusal == nil || refusal.Temporary != tc.want {
			t.Errorf("%s: %+v, want temporary: %t", name, refusal, tc.want)
		}
	}
}

// A pod that has waited long precedes all pods that could be confused with it, and all pods that have waited
// less. It delays neither interchangeable pods nor pods of higher priority.
func TestAPodThatHasWaitedGoesFirst(t *testing.T) {
	now := time.Unix(1000, 0)
	waits := func(name string, req placement.Request, since time.Duration) placement.Holding {
		h := hold(name, req)
		h.Waits = now.Add(since)
		return h
	}
	second := func(r *placement.Request) {
		r.Containers = placement.NewContainers(append(r.Containers.All(), placement.Container{Name: "second", Kind: placement.App, Units: 4})...)
	}
	n := node(inventory(device(0, 10), device(1, 10))).WithNominated([]placement.Holding{
		waits("a", ask(1, placementtest.Models("T4")), 2), waits("z", ask(1, second), 1),
	})
	for name, tc := range map[string]struct {
		pod  string
		req  placement.Request
		want string // the pod that the refusal names
	}{
		"another":             {"new", ask(1), "z"},
		"one that is alike":   {"new", ask(1, second), ""},
		"one that differs":    {"new", ask(2), ""},
		"one of more urgency": {"new", ask(1, placementtest.Priority(1)), ""},
		"the first":           {"z", ask(1, second), ""},
	} {
		_, refusal := Decide(n, placement.PodRef{Namespace: "ns", Name: tc.pod, UID: tc.pod}, tc.req, placement.Binpack)
		got := ""
		if refusal != nil {
			got = refusal.Pod.Name
		}
		if got != tc.want {
			t.Errorf("%s: %q is in the way, want %q", name, got, tc.want)
		}
	}
}

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
		reason string // empty: the pod can go to the node
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

// Reserved is idempotent, and a decision on its result equals the decision on the node itself.
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
		pod := placement.PodRef{Namespace: "ns", Name: "p1", UID: "p1"} // may be in the queue itself
		n := placement.NewNode("n", inv, there).WithNominated(line)
		once := Reserved(n, pod, req, policy)
		if !cmp.Equal(once, n) {
			kept++
		}
		if diff := cmp.Diff(once, Reserved(once, pod, req, policy)); diff != "" {
			t.Errorf("seed %d: reserved again (-once +twice):\n%s", seed, diff)
		}
		want, refused := Decide(n, pod, req, policy)
		got, again := Decide(once, pod, req, policy)
		if diff := cmp.Diff(want, got) + cmp.Diff(refused, again, cmpopts.EquateComparable(nearmiss.Gap{})); diff != "" {
			t.Errorf("seed %d: on the node, and as the pod finds it (-node +found):\n%s", seed, diff)
		}
	}
	if kept < 100 {
		t.Errorf("something is kept for others on %d nodes, which says little", kept)
	}
}
