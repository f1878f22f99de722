package ranking

import (
	order "cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
)

// The words that tables are written in.
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

// scoresOf are the scores of all nodes, in their order; 0 where the request does not fit.
func scoresOf(r *Ranker, defaults Policies, req placement.Request, nodes []placement.Node, prices *Prices) []int64 {
	scores := make([]int64, len(nodes))
	for _, one := range r.Rank(len(nodes), defaults, req, pointers(nodes), prices).Best {
		scores[one.Index] = one.Score
	}
	return scores
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
			if diff := cmp.Diff(tc.want, scoresOf(new(Ranker), Policies{GPU: order.Or(tc.defaults.GPU, placement.Binpack), Node: tc.defaults.Node}, tc.req, tc.nodes, nil)); diff != "" {
				t.Errorf("scores (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzRank: the scores tell where the request fits, the best node has the highest,
// and the order of the nodes does not count.
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
		scores := scoresOf(new(Ranker), defaults, req, nodes, nil)
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
			got := new(Ranker).Rank(most, defaults, req, pointers(nodes), nil).Best
			var want, levels []int64
			for _, score := range scores {
				if score > 0 {
					want = append(want, score)
				}
			}
			slices.SortFunc(want, func(a, b int64) int { return order.Compare(b, a) })
			for _, one := range got {
				if levels = append(levels, one.Score); one.Score != scores[one.Index] {
					t.Fatalf("node %d has score %d among the best, and %d among all", one.Index, one.Score, scores[one.Index])
				}
			}
			if diff := cmp.Diff(want[:min(len(want), most)], levels, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("scores of the best %d (-want +got):\n%s", most, diff)
			}
			for i, score := range scores {
				if score == MaxScore && nodes[i].Name < nodes[got[0].Index].Name {
					t.Fatalf("%s is the best, and %s its equal", nodes[got[0].Index].Name, nodes[i].Name)
				}
			}
		}
		slices.Reverse(nodes)
		backwards := scoresOf(new(Ranker), defaults, req, nodes, nil)
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
	rank := func(r *Ranker, most int) { r.Rank(most, Policies{GPU: placement.Binpack}, req, among, prices) }
	b.Run("anew", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			rank(new(Ranker), len(among))
		}
	})
	b.Run("kept", func(b *testing.B) {
		var r Ranker
		b.ReportAllocs()
		for b.Loop() {
			rank(&r, len(among))
		}
	})
	b.Run("the best of what is kept", func(b *testing.B) {
		var r Ranker
		b.ReportAllocs()
		for b.Loop() {
			rank(&r, 16)
		}
	})
}

// A request with long lists takes more memory than one without, and counts for more of what is
// kept.
func TestWhatIsKeptIsBoundedByWhatRequestsList(t *testing.T) {
	var r Ranker
	node := placement.NewNode("n", inventory(device(0, 1)), nil)
	var globs []string
	for i := range 32 {
		globs = append(globs, fmt.Sprint("GPU-", i))
	}
	most := 0
	for i := range maxKept / 16 {
		req := ask(1, uuids(globs...))
		req.CPU = int64(i + 1)
		r.Rank(1, Policies{GPU: placement.Binpack}, req, []*placement.Node{&node}, nil)
		most = max(most, len(r.kept))
	}
	if bound := maxKept / 32; most > bound {
		t.Errorf("%d requests of 32 globs are kept, want at most %d", most, bound)
	}
}

// What takes no lock is found by the race detector, and by who gets an answer to another's question.
func TestARankerServesAllAtOnce(t *testing.T) {
	var r Ranker
	nodes := []placement.Node{machine("n0", 64_000, 2, 16), machine("n1", 64_000, 2, 8)}
	var all sync.WaitGroup
	for units := range gpu.Units(16) {
		all.Go(func() {
			want := 1 // the smaller GPU
			if units >= 8 {
				want = 0
			}
			for range 20 {
				if best := r.Rank(1, Policies{GPU: placement.Binpack}, ask(units+1), pointers(nodes), nil).Best; best[0].Index != want {
					t.Errorf("%d units are best on node %d, want %d", units+1, best[0].Index, want)
				}
			}
		})
	}
	all.Wait()
}

// What was found of a node is kept until the node changes: a second question takes next to no memory.
func TestWhatWasFoundIsKept(t *testing.T) {
	var nodes []placement.Node
	for i := range 64 {
		nodes = append(nodes, machine(fmt.Sprint("n", i), 64_000, 2, 16))
	}
	var r Ranker
	among, prices := pointers(nodes), NewPrices(learned(ask(4)), nodes)
	rank := func() { r.Rank(1, Policies{GPU: placement.Binpack}, ask(4), among, prices) }
	rank()
	if got := testing.AllocsPerRun(10, rank); got > float64(len(nodes))/2 {
		t.Errorf("%v allocations for %d nodes that have not changed", got, len(nodes))
	}
}

// As much is kept as may be, and then all is forgotten.
func TestWhatIsKeptIsForgottenAtItsBound(t *testing.T) {
	node := placement.NewNode("n", inventory(device(0, 8)), nil)
	weight := 1 + len(ask(1).Containers.All())
	r := Ranker{kept: map[asked]map[string]*ranked{{}: nil}, count: maxKept - weight}
	r.Rank(1, Policies{GPU: placement.Binpack}, ask(1), []*placement.Node{&node}, nil)
	if len(r.kept) != 2 {
		t.Errorf("%d requests are kept, want both", len(r.kept))
	}
	r.Rank(1, Policies{GPU: placement.Binpack}, ask(2), []*placement.Node{&node}, nil)
	if len(r.kept) != 1 || r.count != weight {
		t.Errorf("%d requests are kept that weigh %d, want the last alone, that weighs %d", len(r.kept), r.count, weight)
	}
}

// Nodes that are gone do not add up: others come under other names all the time.
func TestWhatIsKeptIsBoundedAsNodesComeAndGo(t *testing.T) {
	var r Ranker
	for i := range maxKept + 9 {
		node := placement.Node{Name: fmt.Sprint("n", i)}
		r.Rank(1, Policies{GPU: placement.Binpack}, ask(1), []*placement.Node{&node}, nil)
	}
	for _, known := range r.kept {
		if len(known) > maxKept+1 { // the last may go beyond
			t.Errorf("what was found of %d nodes is kept, want at most %d", len(known), maxKept+1)
		}
	}
}
