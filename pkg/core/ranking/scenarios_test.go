package ranking

import (
	"cmp"
	"slices"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Scenarios with a surprising best node, and the reason for it.
func TestScenarios(t *testing.T) {
	of := func(model string, gpus int, units gpu.Units, used ...gpu.Units) placement.Node {
		inv := gpu.Inventory{UnitMiB: 1024}
		var pods []placement.Holding
		for i := range gpus {
			d := device(i, units)
			d.Model = model
			inv.Devices = append(inv.Devices, d)
			if i < len(used) && used[i] > 0 {
				pods = append(pods, hold(model+string(rune('a'+i)), ask(used[i]), i))
			}
		}
		return placement.NewNode(model, inv, pods)
	}
	cores := func(name string, milli int64, n placement.Node) placement.Node {
		n.Name, n.CPU = name, milli
		return n
	}
	others := func(milli int64, n placement.Node) placement.Node {
		n.RequestedCPU += milli
		return n
	}
	only := func(model string) func(*placement.Request) {
		return func(r *placement.Request) { r.Models = placement.NewGlobs(model) }
	}
	many := func(n int, r placement.Request) []placement.Request { return slices.Repeat([]placement.Request{r}, n) }
	tests := map[string]struct {
		mix   []placement.Request
		req   placement.Request
		nodes []placement.Node
		want  string
		alone string // best node by the policy alone, if different
		cost  string // largest difference in costs between the two
		why   string
	}{
		"A: a remainder of a large GPU, and an empty small one": {
			mix: many(10, ask(5)), req: ask(5), nodes: []placement.Node{of("T4", 1, 14), of("A100-80", 1, 80, 74)}, want: "A100-80",
			why: "6 GiB of the A100 are of use to none but small pods, and the T4 stays free for a pod of 14",
		},
		"D: a little CPU beside much GPU memory": {
			mix: many(10, ask(3, cpu(2000))), req: ask(3, cpu(2000)),
			nodes: []placement.Node{cores("n1", 2000, of("T4", 4, 14, 9)), cores("n2", 30_000, of("T4", 4, 14, 8))}, want: "n1",
			why: "one pod is all that n1's CPU is enough for: on n2 this pod would take the CPU of another",
		},
		"much CPU beside little GPU memory": {
			mix: many(10, ask(14, cpu(8000))), req: ask(4, cpu(24_000)),
			nodes: []placement.Node{cores("n1", 32_000, of("T4", 4, 14, 9)), cores("n2", 128_000, of("T4", 4, 14, 7))}, want: "n2", alone: "n1", cost: "CPU",
			why: "n1 would have CPU for one pod of 14 GiB beside three such GPUs",
		},
		"E: half of all pods name the model": {
			mix: append(many(10, ask(12, only("T4"))), many(10, ask(12))...), req: ask(12),
			nodes: []placement.Node{of("T4", 2, 14), of("A10", 4, 22)}, want: "A10", alone: "T4", cost: "Models",
			why: "the pods that name T4 can go nowhere else",
		},
		"of two nodes that the policy alone prefers the name decides": {
			mix: append(many(10, ask(12, only("T4"))), many(10, ask(12))...), req: ask(12),
			nodes: []placement.Node{cores("b", 64_000, of("T4", 2, 14)), cores("a", 64_000, of("T4", 2, 14)), cores("c", 64_000, of("A10", 4, 22))}, want: "c", alone: "a", cost: "Models",
			why: "the pods that name T4 can go nowhere else",
		},
		"F: one in 200 pods wants 8 GPUs": {
			mix: append(many(199, ask(30)), ask(240, count(8))), req: ask(30),
			nodes: []placement.Node{of("A100-40", 8, 40), of("A100-80", 2, 80)}, want: "A100-40",
			why: "so rare a pod is not worth 40 GiB that stay free",
		},
		"H: one in 21 pods wants 8 GPUs": {
			mix: append(many(20, ask(30)), ask(240, count(8))), req: ask(30),
			nodes: []placement.Node{of("A100-40", 8, 40), of("A100-80", 2, 80)}, want: "A100-80", alone: "A100-40", cost: "MultiGPU",
			why: "the node with 8 A100-40 is the only one for a pod that wants 8",
		},
		"much CPU is left to pods without GPU memory": {
			mix: many(10, ask(5, cpu(2000))), req: ask(5, cpu(2000)),
			nodes: []placement.Node{others(24_000, cores("n1", 128_000, of("T4", 1, 14))), cores("n2", 32_000, of("T4", 1, 14))}, want: "n2", alone: "n1", cost: "Idle",
			why: "pods without GPU memory go to n1, where most CPU is free: what n2 has left would be of little use to them",
		},
		"but not for a GPU that has much more left": {
			mix: many(10, ask(5, cpu(2000))), req: ask(5, cpu(2000)),
			nodes: []placement.Node{others(24_000, cores("n1", 128_000, of("T4", 1, 14))), cores("n2", 32_000, of("L4", 1, 22))}, want: "n1",
			why: "8 GiB more would be left free on n2, and CPU counts little",
		},
		"nor where there are no such pods": {
			mix: many(10, ask(5, cpu(2000))), req: ask(5, cpu(2000)),
			nodes: []placement.Node{cores("n1", 128_000, of("T4", 1, 14)), cores("n2", 32_000, of("T4", 1, 14))}, want: "n1",
			why: "no pod has a use for CPU alone, and the name decides",
		},
		"the larger of two empty GPUs is left to larger pods": {
			mix: many(10, ask(5)), req: ask(5), nodes: []placement.Node{of("A100-80", 1, 80), of("T4", 1, 14)}, want: "T4",
			why: "less stays free on it",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := Rank(1, Policies{GPU: placement.Binpack}, tc.req, pointers(tc.nodes), NewPrices(learned(tc.mix...), tc.nodes))
			first, alone := got.First, got.ByPolicy
			if name := first.Node.Name; name != tc.want {
				t.Errorf("the pod goes to %s, want %s: %s", name, tc.want, tc.why)
			}
			if name, want := alone.Node.Name, cmp.Or(tc.alone, tc.want); name != want {
				t.Errorf("by the policy alone it goes to %s, want %s", name, want)
			}
			more := map[string]float64{"Models": alone.Models - first.Models, "CPU": alone.CPU - first.CPU, "MultiGPU": alone.MultiGPU - first.MultiGPU, "Idle": alone.Idle - first.Idle}
			for name, units := range more {
				if tc.cost != "" && (units > more[tc.cost] || more[tc.cost] <= 0) {
					t.Errorf("%s costs %g units more on %s, want %s, which costs %g, to be the most", name, units, tc.alone, tc.cost, more[tc.cost])
				}
			}
		})
	}
}
