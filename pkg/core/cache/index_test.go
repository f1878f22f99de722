package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

// addFleet adds nodes with eight GPUs each, of four models in turn, and returns their names.
func addFleet(c *Cache, nodes int) (names []string) {
	sizes := []gpu.Units{79, 79, 22, 14}
	for i := range nodes {
		name := fmt.Sprintf("node-%05d", i)
		names = append(names, name)
		inv := gpu.Inventory{UnitMiB: 1024, CPU: 64_000}
		for k := range 8 {
			inv.Devices = append(inv.Devices, gpu.Device{UUID: gpu.UUID(fmt.Sprint(name, k)), Index: k, Model: fmt.Sprint("m", i%4), Allocatable: sizes[i%4], NUMANode: -1})
		}
		c.SetNode(name, inv)
	}
	return names
}

// An index of a cache has the order of Rank over all nodes, after any updates and assumptions.
func TestAnIndexOfACache(t *testing.T) {
	cpu := placementtest.CPU(100)
	requests := []placement.Request{
		placementtest.Ask(3, cpu), placementtest.Ask(5, cpu), placementtest.Ask(40, cpu), placementtest.Ask(20, cpu, placementtest.Count(2)),
		placementtest.Ask(16, placementtest.Policy(placement.Spread)), placementtest.Ask(8, placementtest.Policy(placement.Exclusive)), important(ask(3)),
	}
	for seed, defaults := range []ranking.Policies{{GPU: placement.Binpack}, {GPU: placement.Spread}, {GPU: placement.Binpack, Node: placement.Spread}} {
		random := rand.New(rand.NewPCG(uint64(seed), 3))
		c := New()
		names := addFleet(c, 60)
		name := func() string { return names[random.IntN(len(names))] }
		var index ranking.Index
		var pods []string
		for step := range 2000 {
			req := requests[random.IntN(len(requests))]
			pod := ref(fmt.Sprint("pod-", step))
			switch random.IntN(12) {
			case 0:
				if len(pods) > 0 {
					c.RemovePod(pods[random.IntN(len(pods))])
				}
			case 1:
				c.NominatePod(name(), pod, req, placement.Assignment{}, time.Time{})
				pods = append(pods, pod.UID)
			case 2:
				c.RemoveNode(name())
			case 5:
				c.Expect(pod, name(), req, placement.Binpack, start.Add(time.Duration(step)))
				c.Expire(start.Add(ExpectationTTL + time.Duration(step-200)))
			case 3:
				addFleet(c, 60)
			case 4:
				c.Learn(req)
				c.Reprice()
			default:
				if _, err := c.AssumePod(pod, name(), req, placement.Binpack, start); err == nil {
					pods = append(pods, pod.UID)
				}
			}
			if random.IntN(4) > 0 {
				continue
			}
			view := NewQuestion(ref("asker"), req, defaults.GPU).View
			var got, want []string
			index.Walk(c, ranking.Question{Request: req, Defaults: defaults, View: view}, nil, func(n *placement.Node, _ int) bool {
				got = append(got, n.Name)
				return true
			})
			var nodes []*placement.Node
			for n := range c.All {
				if len(n.Nominated)+len(n.Expected) > 0 {
					n = view(n)
				}
				nodes = append(nodes, n)
			}
			for _, one := range ranking.Rank(len(nodes), defaults, req, nodes, c.Prices()).Best {
				want = append(want, one.Node.Name)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("step %d, %+v: %d nodes, want %d\n%v\n%v", step, req, len(got), len(want), got, want)
			}
		}
	}
}

// Steps that run for each pod or each node allocate little. The limits are about twice the present numbers.
func TestAllocations(t *testing.T) {
	const size = 64
	c := New()
	names := addFleet(c, size)
	var index ranking.Index
	best := func(index *ranking.Index) {
		question := ranking.Question{Request: ask(8), Defaults: ranking.Policies{GPU: placement.Binpack}}
		index.Walk(c, question, nil, func(*placement.Node, int) bool { return false })
	}
	refused := NewQuestion(ref("refused"), ask(90), placement.Binpack)
	for name, tc := range map[string]struct {
		step func()
		most float64
	}{
		"entries of a new index":      {func() { best(new(ranking.Index)) }, 10 * size},
		"the best of unchanged nodes": {func() { best(&index) }, 16},
		"a refusal that is stored":    {func() { _ = c.Refusal(names[0], refused) }, 1},
		"a new state of a node":       {func() { c.SetNode(names[0], *c.all[names[0]].inventory) }, 12},
		"a pod reserved, then removed": {func() {
			if _, err := c.AssumePod(ref("pod"), names[0], ask(8), placement.Binpack, start); err != nil {
				t.Fatal(err)
			}
			c.RemovePod("pod")
		}, 32},
	} {
		if got := testing.AllocsPerRun(20, tc.step); got > tc.most {
			t.Errorf("%s: %.0f allocations, want %.0f at most", name, got, tc.most)
		}
	}
}

// BenchmarkBest places pods of seven requests in turn, each on the best of all nodes, as in a burst: the index,
// the reservation of GPUs, and the watch.
func BenchmarkBest(b *testing.B) {
	for _, size := range []int{500, 5_000, 50_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := New()
			addFleet(c, size)
			var requests []placement.Request
			for _, units := range []gpu.Units{3, 5, 8, 10, 16, 20, 40} {
				requests = append(requests, placementtest.Ask(units, placementtest.CPU(100)))
				c.Learn(requests[len(requests)-1])
			}
			c.Reprice()
			var index ranking.Index
			best := func(req placement.Request) (name string) {
				index.Walk(c, ranking.Question{Request: req, Defaults: ranking.Policies{GPU: placement.Binpack}}, nil, func(n *placement.Node, _ int) bool {
					name = n.Name
					return false
				})
				return name
			}
			for _, req := range requests {
				best(req)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				req, pod := requests[i%len(requests)], ref(fmt.Sprint(i))
				name := best(req)
				a, err := c.AssumePod(pod, name, req, placement.Binpack, time.Unix(0, 0))
				if err != nil {
					b.Fatal(err)
				}
				c.AddPod(name, placement.Holding{Pod: pod, Request: req, Assignment: a, Admitted: true})
				if i >= 1000 {
					c.RemovePod(fmt.Sprint(i - 1000))
				}
			}
		})
	}
}

// BenchmarkIndex orders all nodes for a new request.
func BenchmarkIndex(b *testing.B) {
	c := New()
	addFleet(c, 5_000)
	b.ReportAllocs()
	for b.Loop() {
		new(ranking.Index).Walk(c, ranking.Question{Request: ask(8), Defaults: ranking.Policies{GPU: placement.Binpack}}, nil, func(*placement.Node, int) bool { return false })
	}
}

// BenchmarkRefused measures the decision for a pod that does not fit.
func BenchmarkRefused(b *testing.B) {
	c := New()
	names := addFleet(c, 5_000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		n := c.GetNode(names[i%len(names)])
		if NewQuestion(ref("p"), ask(90), placement.Binpack).Evaluate(*n) == nil {
			b.Fatal("a pod of 90 units fits")
		}
	}
}

// TestAnIndexFollowsThePrices changes only the prices between two walks, so that the index keeps its nodes and
// sorts them again.
func TestAnIndexFollowsThePrices(t *testing.T) {
	c, defaults := New(), ranking.Policies{GPU: placement.Binpack}
	names, random := addFleet(c, 60), rand.New(rand.NewPCG(1, 3))
	cpu := placementtest.CPU(4000)
	requests := []placement.Request{placementtest.Ask(3, cpu), placementtest.Ask(40, cpu), placementtest.Ask(20, cpu, placementtest.Count(2)), placementtest.Ask(8)}
	for i := range 600 {
		_, _ = c.AssumePod(ref(fmt.Sprint("pod-", i)), names[random.IntN(len(names))], requests[random.IntN(len(requests))], placement.Binpack, start) // some do not fit
	}
	var index ranking.Index
	orders := make(map[string]bool)
	for step := range 40 {
		req := requests[0]
		var got, want []string
		view := NewQuestion(ref("asker"), req, defaults.GPU).View
		index.Walk(c, ranking.Question{Request: req, Defaults: defaults, View: view}, nil, func(n *placement.Node, _ int) bool {
			got = append(got, n.Name)
			return true
		})
		var nodes []*placement.Node
		for n := range c.All {
			nodes = append(nodes, n)
		}
		for _, one := range ranking.Rank(len(nodes), defaults, req, nodes, c.Prices()).Best {
			want = append(want, one.Node.Name)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("step %d: %v, want %v", step, got, want)
		}
		orders[fmt.Sprint(got)] = true
		for range 50 {
			c.Learn(requests[step%len(requests)])
		}
		c.Reprice()
	}
	if len(orders) < 2 {
		t.Error("no price changes the order, and the test finds nothing")
	}
}
