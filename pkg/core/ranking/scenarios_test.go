package ranking

import (
	"slices"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Where pods go that people would have put elsewhere, and why.
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
	only := func(model string) func(*placement.Request) {
		return func(r *placement.Request) { r.Models = placement.NewGlobs(model) }
	}
	many := func(n int, r placement.Request) []placement.Request { return slices.Repeat([]placement.Request{r}, n) }
	tests := map[string]struct {
		mix   []placement.Request
		req   placement.Request
		nodes []placement.Node
		want  string
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
		"E: half of all pods name the model": {
			mix: append(many(10, ask(12, only("T4"))), many(10, ask(12))...), req: ask(12),
			nodes: []placement.Node{of("T4", 2, 14), of("A10", 4, 22)}, want: "A10",
			why: "the pods that name T4 can go nowhere else",
		},
		"F: one in 200 pods wants 8 GPUs": {
			mix: append(many(199, ask(30)), ask(240, count(8))), req: ask(30),
			nodes: []placement.Node{of("A100-40", 8, 40), of("A100-80", 2, 80)}, want: "A100-40",
			why: "so rare a pod is not worth 40 GiB that stay free",
		},
		"H: one in 21 pods wants 8 GPUs": {
			mix: append(many(20, ask(30)), ask(240, count(8))), req: ask(30),
			nodes: []placement.Node{of("A100-40", 8, 40), of("A100-80", 2, 80)}, want: "A100-80",
			why: "the node with 8 A100-40 is the only one for a pod that wants 8",
		},
		"the larger of two empty GPUs is left to larger pods": {
			mix: many(10, ask(5)), req: ask(5), nodes: []placement.Node{of("A100-80", 1, 80), of("T4", 1, 14)}, want: "T4",
			why: "less stays free on it",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			best := new(Ranker).Best(1, Policies{GPU: placement.Binpack}, tc.req, pointers(tc.nodes), NewPrices(learned(tc.mix...), tc.nodes))
			if got := tc.nodes[best[0].Index].Name; got != tc.want {
				t.Errorf("the pod goes to %s, want %s: %s", got, tc.want, tc.why)
			}
		})
	}
}
