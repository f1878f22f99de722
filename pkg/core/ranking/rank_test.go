package ranking

import (
	order "cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
)

// Short names for the tables.
var (
	device, numa, speed, link                      = placementtest.Device, placementtest.NUMA, placementtest.Speed, placementtest.Link
	inventory, hold, machine                       = placementtest.Inventory, placementtest.Hold, placementtest.Machine
	ask, count, cpu, policy, prefers, group, uuids = placementtest.Ask, placementtest.Count, placementtest.CPU, placementtest.Policy, placementtest.Prefers, placementtest.Group, placementtest.UUIDs
)

func pointers(nodes []placement.Node) []*placement.Node {
	out := make([]*placement.Node, len(nodes))
	for i := range nodes {
		out[i] = &nodes[i]
	}
	return out
}

// indexOf returns the index of a node.
func indexOf(nodes []placement.Node, n *placement.Node) int {
	return slices.IndexFunc(nodes, func(o placement.Node) bool { return o.Name == n.Name })
}

// scoresOf returns the scores of all nodes in their order; 0 if the request does not fit.
func scoresOf(defaults Policies, req placement.Request, nodes []placement.Node, prices *Prices) []int64 {
	scores := make([]int64, len(nodes))
	for _, one := range Rank(len(nodes), defaults, req, pointers(nodes), prices).Best {
		scores[indexOf(nodes, one.Node)] = one.Score
	}
	return scores
}

// Most entries of an Index belong to requests without preferences. An Order in each entry would double
// the size of the Index.
func TestARequestWithoutLikingsHasNoOrder(t *testing.T) {
	n := placementtest.Node(inventory(device(0, 8), device(1, 8)))
	r := criteria{defaults: Policies{GPU: placement.Binpack}, req: ask(4)}.rank(&n)
	if r == nil || r.order != nil {
		t.Errorf("got %+v, want an entry without an order", r)
	}
}

func TestRank(t *testing.T) {
	named := func(name string, inv gpu.Inventory, holdings ...placement.Holding) placement.Node {
		return placement.NewNode(name, inv, holdings)
	}
	one := inventory(device(0, 10))
	two := inventory(device(0, 10), device(1, 10))
	tests := map[string]struct {
		defaults Policies
		req      placement.Request
		nodes    []placement.Node
		want     []int64
	}{
		"no nodes": {req: ask(1), want: []int64{}},
		"nothing fits": {
			req: ask(11), nodes: []placement.Node{named("a", one), named("b", two)}, want: []int64{0, 0},
		},
		"the only one that fits is the best": {
			req: ask(5), nodes: []placement.Node{named("a", one, hold("p", ask(6), 0)), named("b", one), {Name: "c"}}, want: []int64{0, 10, 0},
		},
		"binpack: the tightest GPU first": {
			req: ask(2), nodes: []placement.Node{named("a", one), named("b", one, hold("p", ask(8), 0)), named("c", one, hold("p", ask(4), 0))}, want: []int64{3, 10, 6},
		},
		"binpack: among equal GPUs the fullest node": {
			req: ask(2), nodes: []placement.Node{named("a", two), named("b", two, hold("p", ask(10), 1))}, want: []int64{5, 10},
		},
		"spread: the emptiest GPU first": {
			defaults: Policies{GPU: placement.Spread}, req: ask(2), nodes: []placement.Node{named("a", one, hold("p", ask(1), 0)), named("b", one)}, want: []int64{5, 10},
		},
		"spread: an empty node before a larger one with a pod": {
			defaults: Policies{GPU: placement.Spread}, req: ask(2), nodes: []placement.Node{named("a", two, hold("p", ask(1), 0)), named("b", one)}, want: []int64{5, 10},
		},
		"spread: an empty GPU before an emptier node": {
			defaults: Policies{GPU: placement.Spread}, req: ask(2), nodes: []placement.Node{named("a", two, hold("p", ask(4), 0)), named("b", one, hold("q", ask(1), 0))}, want: []int64{10, 5},
		},
		"nodes are spread where GPUs are packed: the emptier node": {
			defaults: Policies{GPU: placement.Binpack, Node: placement.Spread}, req: ask(2), nodes: []placement.Node{named("a", two, hold("p", ask(4), 0)), named("b", one, hold("q", ask(1), 0))}, want: []int64{5, 10},
		},
		"spread: of several GPUs the fullest counts, in whatever order": {
			defaults: Policies{GPU: placement.Spread}, req: ask(4, count(2)),
			nodes: []placement.Node{
				named("a", two, hold("p", ask(1), 0), hold("q", ask(3), 1)), named("b", two, hold("p", ask(3), 0), hold("q", ask(1), 1)),
				named("c", two, hold("p", ask(2), 0), hold("q", ask(2), 1)), named("d", two, hold("p", ask(4), 0)),
			}, want: []int64{7, 7, 10, 3},
		},
		"spread: of nodes that are as empty, the one with the larger GPU": {
			defaults: Policies{GPU: placement.Spread}, req: ask(2),
			nodes: []placement.Node{named("a", inventory(device(0, 15), device(1, 15))), named("b", inventory(device(0, 10), device(1, 20)))}, want: []int64{5, 10},
		},
		"spread: of empty nodes the larger": {
			defaults: Policies{GPU: placement.Spread}, req: ask(2), nodes: []placement.Node{named("a", one), named("b", two)}, want: []int64{5, 10},
		},
		"spread: among nodes with as much free, the one with the emptier GPU": {
			defaults: Policies{GPU: placement.Spread}, req: ask(2), nodes: []placement.Node{named("a", two, hold("p", ask(4), 0), hold("q", ask(4), 1)), named("b", two, hold("p", ask(8), 0))}, want: []int64{5, 10},
		},
		"nodes are spread where GPUs are packed": {
			defaults: Policies{GPU: placement.Binpack, Node: placement.Spread}, req: ask(2), nodes: []placement.Node{named("a", two, hold("p", ask(8), 0)), named("b", two, hold("p", ask(1), 0))}, want: []int64{5, 10},
		},
		"nodes are packed where GPUs are spread": {
			defaults: Policies{GPU: placement.Spread, Node: placement.Binpack}, req: ask(2), nodes: []placement.Node{named("a", two, hold("p", ask(8), 0), hold("q", ask(4), 1)), named("b", two)}, want: []int64{10, 5},
		},
		"the pod's policy is of nodes too": {
			defaults: Policies{GPU: placement.Binpack, Node: placement.Binpack}, req: ask(2, policy(placement.Spread)), nodes: []placement.Node{named("a", one), named("b", one, hold("p", ask(4), 0))}, want: []int64{10, 5},
		},
		"exclusive says nothing of nodes": {
			defaults: Policies{GPU: placement.Binpack, Node: placement.Spread}, req: ask(2, policy(placement.Exclusive)), nodes: []placement.Node{named("a", two, hold("p", ask(4), 0)), named("b", two)}, want: []int64{5, 10},
		},
		"the fastest model first, by which the policy does not": {
			req: ask(2, prefers(placement.Fastest)), nodes: []placement.Node{named("a", one), named("b", inventory(device(0, 80, speed(317)))), named("c", inventory(device(0, 16, speed(21))))}, want: []int64{3, 10, 6},
		},
		"the cheapest model first, one of unknown speed last": {
			req: ask(2, prefers(placement.Cheapest)), nodes: []placement.Node{named("a", one), named("b", inventory(device(0, 80, speed(317)))), named("c", inventory(device(0, 16, speed(21))))}, want: []int64{3, 6, 10},
		},
		"two GPUs are as fast as the slower": {
			req: ask(2, count(2), prefers(placement.Fastest)), nodes: []placement.Node{named("a", inventory(device(0, 9, speed(100)), device(1, 9, speed(21)))), named("b", inventory(device(0, 9, speed(40)), device(1, 9, speed(40))))}, want: []int64{5, 10},
		},
		"two GPUs that are linked before two that are not": {
			req: ask(2, count(2)), nodes: []placement.Node{named("a", two, hold("p", ask(8), 0)), named("b", gpu.Inventory{UnitMiB: 1024, Devices: two.Devices, Links: []gpu.Link{link(0, 1, 1)}})}, want: []int64{5, 10},
		},
		"two GPUs of one NUMA node before two of two": {
			req: ask(2, count(2)), nodes: []placement.Node{named("a", inventory(device(0, 10, numa(0)), device(1, 10, numa(1))), hold("p", ask(8), 0)), named("b", inventory(device(0, 10, numa(1)), device(1, 10, numa(1))))}, want: []int64{5, 10},
		},
		"a group draws to its node": {
			req: ask(2, group("g")), nodes: []placement.Node{named("a", one, hold("p", ask(8), 0)), named("b", two, hold("p", ask(1, group("g")), 1))}, want: []int64{5, 10},
		},
		"a policy that there is not likes no node better": {
			defaults: Policies{GPU: "best"}, req: ask(2), nodes: []placement.Node{named("a", one), named("b", one, hold("p", ask(4), 0))}, want: []int64{10, 10},
		},
		"equal nodes have equal scores, at the top and below": {
			req: ask(2), nodes: []placement.Node{named("b", one), named("a", one, hold("p", ask(4), 0)), named("c", one), named("d", one, hold("p", ask(4), 0))}, want: []int64{5, 10, 5, 10},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, scoresOf(Policies{GPU: order.Or(tc.defaults.GPU, placement.Binpack), Node: tc.defaults.Node}, tc.req, tc.nodes, nil)); diff != "" {
				t.Errorf("scores (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzRank checks that exactly the nodes on which the request fits have a score, that the best node has the
// highest one, and that the order of the nodes does not matter.
func FuzzRank(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 5))
		defaults := Policies{GPU: placementtest.Pick(random, placement.Binpack, placement.Spread, ""), Node: placementtest.Pick(random, "", placement.Binpack, placement.Spread)}
		_, _, req := placementtest.World(random)
		var nodes []placement.Node
		for i := range 1 + random.IntN(12) {
			inv, holdings, _ := placementtest.World(random)
			nodes = append(nodes, placement.NewNode(fmt.Sprint("n", i), inv, holdings))
		}
		scores := scoresOf(defaults, req, nodes, nil)
		best, fitting := 0, 0
		for i, score := range scores {
			fits := req.Empty() || placement.Fit(req, nodes[i]).Fits()
			if fits {
				fitting++
			}
			if fits != (score > 0) || score < 0 || score > MaxScore {
				t.Fatalf("node %d fits: %t, score %d", i, fits, score)
			}
			if score == MaxScore {
				best++
			}
		}
		if best < min(1, fitting) {
			t.Fatalf("%d of %d nodes that fit have the highest score", best, fitting)
		}
		for _, most := range []int{1, 3, len(nodes)} {
			got := Rank(most, defaults, req, pointers(nodes), nil).Best
			var want, levels []int64
			for _, score := range scores {
				if score > 0 {
					want = append(want, score)
				}
			}
			slices.SortFunc(want, func(a, b int64) int { return order.Compare(b, a) })
			for _, one := range got {
				if levels = append(levels, one.Score); one.Score != scores[indexOf(nodes, one.Node)] {
					t.Fatalf("%s has score %d among the best, and %d among all", one.Node.Name, one.Score, scores[indexOf(nodes, one.Node)])
				}
			}
			if diff := cmp.Diff(want[:min(len(want), most)], levels, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("scores of the best %d (-want +got):\n%s", most, diff)
			}
			for i, score := range scores {
				if score == MaxScore && nodes[i].Name < got[0].Node.Name {
					t.Fatalf("%s is the best, and %s its equal", got[0].Node.Name, nodes[i].Name)
				}
			}
		}
		slices.Reverse(nodes)
		backwards := scoresOf(defaults, req, nodes, nil)
		slices.Reverse(backwards)
		if diff := cmp.Diff(scores, backwards); diff != "" {
			t.Fatalf("the order of the nodes shows (-want +got):\n%s", diff)
		}
	})
}

func BenchmarkRank(b *testing.B) {
	var nodes []placement.Node
	for i := range 1000 {
		var pods []placement.Holding
		for g := range 8 {
			if (i+g)%3 > 0 {
				pods = append(pods, hold(fmt.Sprint("p", g), ask(4, cpu(2000)), g))
			}
		}
		nodes = append(nodes, machine(fmt.Sprint("n", i), 64_000, 8, 16, pods...))
	}
	prices := NewPrices(learned(ask(4, cpu(2000)), ask(16, cpu(8000)), ask(64, count(4), cpu(8000))), nodes)
	req, among := ask(6, cpu(2000)), pointers(nodes)
	b.ReportAllocs()
	for b.Loop() {
		Rank(len(among), Policies{GPU: placement.Binpack}, req, among, prices)
	}
}

// TestAloneIsTheFirstOfEquals verifies that Ranking.ByPolicy is the chosen node, not another node of the same
// worth with a better place in the policy's order and a higher cost.
func TestAloneIsTheFirstOfEquals(t *testing.T) {
	a, b, c := ranked{node: &placement.Node{Name: "a"}}, ranked{node: &placement.Node{Name: "b"}}, ranked{node: &placement.Node{Name: "c"}}
	a.policy[0], a.worth = 2, 3
	b.policy[0], b.worth = 1, 3 // its cost is higher by 1
	c.policy[0], c.worth = 3, 4
	if got := (criteria{}).ranking([]*ranked{&a, &b, &c}, 3, 3); got.First.Node.Name != "a" || got.ByPolicy.Node.Name != "a" {
		t.Errorf("first %s, by the policy alone %s; want a", got.First.Node.Name, got.ByPolicy.Node.Name)
	}
	b.worth = 3.5
	if got := (criteria{}).ranking([]*ranked{&a, &b, &c}, 3, 3); got.ByPolicy.Node.Name != "b" {
		t.Errorf("by the policy alone %s, want b", got.ByPolicy.Node.Name)
	}
}
