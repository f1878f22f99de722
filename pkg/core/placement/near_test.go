package placement_test

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// eight returns eight GPUs, four on each NUMA node.
func eight(links ...gpu.Link) gpu.Inventory {
	inv := gpu.Inventory{UnitMiB: 1024, Links: links}
	for i := range 8 {
		inv.Devices = append(inv.Devices, device(i, 16, numa(i/4)))
	}
	return inv
}

// cubeMesh is the hybrid cube mesh of a DGX-1 with V100: six NVLinks per GPU, two fully linked quads, and one
// link from each GPU to the other quad (NVIDIA, "DGX-1 With Tesla V100 System Architecture").
func cubeMesh() gpu.Inventory {
	return eight(
		link(0, 1, 1), link(0, 2, 1), link(0, 3, 2), link(1, 2, 2), link(1, 3, 1), link(2, 3, 2),
		link(4, 5, 1), link(4, 6, 1), link(4, 7, 2), link(5, 6, 2), link(5, 7, 1), link(6, 7, 2),
		link(0, 4, 2), link(1, 5, 2), link(2, 6, 1), link(3, 7, 1),
	)
}

// bridged has four pairs of GPUs, each with a bridge of four NVLinks.
func bridged() gpu.Inventory {
	return eight(link(0, 4, 4), link(1, 2, 4), link(3, 7, 4), link(5, 6, 4))
}

// switched links every GPU to every other.
func switched() gpu.Inventory {
	var links []gpu.Link
	for a := range 8 {
		for b := range a {
			links = append(links, link(b, a, 12))
		}
	}
	return eight(links...)
}

func topologies() map[string]gpu.Inventory {
	return map[string]gpu.Inventory{"cube mesh": cubeMesh(), "two by four without links": eight(), "bridges": bridged(), "a switch": switched()}
}

func TestCubeMeshHasSixLinksOnEachGPU(t *testing.T) {
	lanes := make(map[gpu.UUID]int)
	for _, l := range cubeMesh().Links {
		lanes[l.A] += l.Lanes
		lanes[l.B] += l.Lanes
	}
	for _, d := range cubeMesh().Devices {
		if lanes[d.UUID] != 6 {
			t.Errorf("GPU %d has %d links, want 6", d.Index, lanes[d.UUID])
		}
	}
}

func TestChooseNear(t *testing.T) {
	tests := map[string]struct {
		inv    gpu.Inventory
		in     []int // GPUs in exclusive use
		count  int
		policy placement.Policy
		want   []int
	}{
		"a pair with two links, on one NUMA node":           {inv: cubeMesh(), count: 2, want: []int{0, 3}},
		"two links to another NUMA node before one":         {inv: cubeMesh(), in: []int{2, 3, 6, 7}, count: 2, want: []int{0, 4}},
		"three that are all linked, not two with two links": {inv: cubeMesh(), in: []int{2, 6, 7}, count: 3, want: []int{0, 1, 3}},
		"a quad":                   {inv: cubeMesh(), count: 4, want: []int{0, 1, 2, 3}},
		"the other quad":           {inv: cubeMesh(), in: []int{1}, count: 4, want: []int{4, 5, 6, 7}},
		"all":                      {inv: cubeMesh(), count: 8, want: []int{0, 1, 2, 3, 4, 5, 6, 7}},
		"a bridge over NUMA nodes": {inv: bridged(), in: []int{1, 3, 6}, count: 2, want: []int{0, 4}},
		"two bridges":              {inv: bridged(), in: []int{3}, count: 4, want: []int{0, 1, 2, 4}},
		"no links: one NUMA node":  {inv: eight(), in: []int{0, 1}, count: 3, want: []int{4, 5, 6}},
		"no links: as few on the other NUMA node as need be": {inv: eight(), in: []int{0, 1, 5}, count: 4, want: []int{2, 4, 6, 7}},
		"all alike: the policy decides":                      {inv: eight(), count: 2, policy: placement.Spread, want: []int{1, 2}},
		"one GPU: links do not count":                        {inv: cubeMesh(), count: 1, policy: placement.Spread, want: []int{1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			holdings := []placement.Holding{hold("a little", ask(1), 0)}
			for _, i := range tc.in {
				holdings = append(holdings, hold(fmt.Sprint("p", i), ask(16), i))
			}
			got, _ := placement.Choose(tc.policy, ask(gpu.Units(tc.count), count(tc.count)), node(tc.inv, holdings...))
			var want []gpu.UUID
			for _, i := range tc.want {
				want = append(want, uuid(i))
			}
			if diff := cmp.Diff(want, got.Devices()); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
		})
	}
}

// The GPU of the pod's group is among the picked GPUs, even if other sets are nearer.
func TestTheGroupComesBeforeNearness(t *testing.T) {
	n := node(eight(gpu.Link{A: uuid(1), B: uuid(2), Lanes: 4}), hold("member", ask(1, group("g")), 0))
	got, _ := placement.Choose(placement.Binpack, ask(2, count(2), group("g")), n)
	if !slices.Contains(got.Devices(), uuid(0)) {
		t.Errorf("GPUs %v, want that of the group", got.Devices())
	}
}

// TestNoSetIsNearer compares every choice from any of eight GPUs with all possible sets.
func TestNoSetIsNearer(t *testing.T) {
	for name, inv := range topologies() {
		t.Run(name, func(t *testing.T) {
			var chosen, best, plain int
			for free := range 1 << len(inv.Devices) {
				var holdings []placement.Holding
				for i := range inv.Devices {
					if free>>i&1 == 0 {
						holdings = append(holdings, hold(fmt.Sprint("p", i), ask(16), i))
					}
				}
				n := node(inv, holdings...)
				for k := 2; k <= bits.OnesCount(uint(free)); k++ {
					got, _ := placement.Choose(placement.Binpack, ask(gpu.Units(k), count(k)), n)
					set := devicesOf(n, got)
					twin, least := leastOfAll(inv, free, k)
					if sum := sumOf(inv, set); sum != least || len(set) != k {
						t.Fatalf("of %08b, %d GPUs: chosen %v with %+v, but %v has %+v", free, k, set, sum, twin, least)
					}
					chosen, best, plain = chosen+sumOf(inv, set).lanes, best+least.lanes, plain+sumOf(inv, lowest(free, k)).lanes
				}
			}
			t.Logf("NVLinks within the sets chosen: %d; at best: %d; by index alone: %d", chosen, best, plain)
		})
	}
}

func devicesOf(n placement.Node, a placement.Assignment) (out []int) {
	for i, d := range n.Devices {
		if slices.Contains(a.Devices(), d.UUID) {
			out = append(out, i)
		}
	}
	return out
}

// distance measures the GPUs of a set.
type distance struct{ unlinked, lanes, crossing int }

// leastOfAll tries each set of k GPUs. Bit i of free is set if GPU i is free.
func leastOfAll(inv gpu.Inventory, free, k int) (best []int, least distance) {
	for set := range 1 << len(inv.Devices) {
		if set&^free != 0 || bits.OnesCount(uint(set)) != k {
			continue
		}
		members := lowest(set, k)
		if sum := sumOf(inv, members); best == nil || nearer(sum, least) {
			best, least = members, sum
		}
	}
	return best, least
}

func lowest(set, k int) (out []int) {
	for i := 0; len(out) < k; i++ {
		if set>>i&1 == 1 {
			out = append(out, i)
		}
	}
	return out
}

// nearer is an independent implementation of the documented order.
func nearer(a, b distance) bool {
	if a.unlinked != b.unlinked {
		return a.unlinked < b.unlinked
	}
	return a.lanes > b.lanes || a.lanes == b.lanes && a.crossing < b.crossing
}

func sumOf(inv gpu.Inventory, set []int) (sum distance) {
	for i := range set {
		for j := range i {
			lanes := 0
			for _, l := range inv.Links {
				ends := []gpu.UUID{l.A, l.B}
				if slices.Contains(ends, uuid(set[i])) && slices.Contains(ends, uuid(set[j])) {
					lanes += l.Lanes
				}
			}
			sum.lanes += lanes
			if lanes == 0 {
				sum.unlinked++
			}
			if set[i]/4 != set[j]/4 {
				sum.crossing++
			}
		}
	}
	return sum
}

func TestManyGPUsAreNotAllTried(t *testing.T) {
	inv := gpu.Inventory{UnitMiB: 1024}
	for i := range 64 {
		inv.Devices = append(inv.Devices, device(i, 4, numa(i/8)))
	}
	for _, k := range []int{2, 8, 32, 63, 64} {
		if got, _ := placement.Choose(placement.Binpack, ask(gpu.Units(k), count(k)), node(inv)); len(got.Shares) != k {
			t.Errorf("%d of 64 GPUs: got %d", k, len(got.Shares))
		}
	}
}

func BenchmarkChooseFourOfEight(b *testing.B) {
	n := node(cubeMesh())
	req := ask(4, count(4))
	for b.Loop() {
		if got, _ := placement.Choose(placement.Binpack, req, n); got.None() {
			b.Fatal("nothing is chosen")
		}
	}
}
