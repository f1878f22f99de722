package reasons

import (
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

func TestWhy(t *testing.T) {
	ask, count, group, machine := placementtest.Ask, placementtest.Count, placementtest.Group, placementtest.Machine
	model := func(name string, n placement.Node) placement.Node {
		for i := range n.Devices {
			n.Devices[i].Model = name
		}
		return n
	}
	only := func(model string) func(*placement.Request) {
		return func(r *placement.Request) { r.Models = placement.NewGlobs(model) }
	}
	fast := placementtest.Inventory(placementtest.Device(0, 16, placementtest.Speed(100)))
	linked := gpu.Inventory{UnitMiB: 1024, Devices: placementtest.Inventory(placementtest.Device(0, 16), placementtest.Device(1, 16)).Devices}
	linked.Links = []gpu.Link{placementtest.Link(0, 1, 4)}
	grouped := group("g")
	tests := map[string]struct {
		policy placement.Policy
		mix    []placement.Request
		req    placement.Request
		nodes  []placement.Node
		want   string
	}{
		"the policy": {req: ask(4), nodes: []placement.Node{machine("a", 0, 1, 16), machine("b", 0, 1, 8)}},
		"no node":    {req: ask(40), nodes: []placement.Node{machine("a", 0, 1, 16)}},
		"equals":     {req: ask(4), nodes: []placement.Node{machine("b", 0, 1, 8), machine("a", 0, 1, 8)}},
		"the group": {
			req: ask(4, grouped), nodes: []placement.Node{machine("a", 0, 1, 8), machine("b", 0, 1, 16, placementtest.Hold("x", ask(1, grouped), 0))},
			want: "b ranks before a, which is at least as good by the policy alone: a pod of its gpu-group is there",
		},
		"the group, where GPUs are spread": {
			policy: placement.Spread, req: ask(4, grouped),
			nodes: []placement.Node{machine("a", 0, 1, 16), machine("b", 0, 1, 16, placementtest.Hold("x", ask(1, grouped), 0))},
			want:  "b ranks before a, which is at least as good by the policy alone: a pod of its gpu-group is there",
		},
		"the model": {
			req: ask(4, placementtest.Prefers(placement.Fastest)), nodes: []placement.Node{machine("a", 0, 1, 8), placement.NewNode("b", fast, nil)},
			want: "b ranks before a, which is at least as good by the policy alone: the pod's gpu-model-preference is for that model",
		},
		"the model, of nodes that are equal by the policy": {
			req: ask(4, placementtest.Prefers(placement.Fastest)), nodes: []placement.Node{machine("a", 0, 1, 16), placement.NewNode("b", fast, nil)},
			want: "b ranks before a, which is at least as good by the policy alone: the pod's gpu-model-preference is for that model",
		},
		"nearness": {
			req: ask(8, count(2)), nodes: []placement.Node{machine("a", 0, 2, 8), placement.NewNode("b", linked, nil)},
			want: "b ranks before a, which is at least as good by the policy alone: the GPUs there are nearer to one another",
		},
		"models": {
			mix: []placement.Request{ask(12, only("T4")), ask(12)}, req: ask(12),
			nodes: []placement.Node{model("T4", machine("t4", 0, 2, 14)), model("A10", machine("a10", 0, 4, 22))},
			want:  "a10 ranks before t4, which is at least as good by the policy alone: on t4 the pod would take a model that other pods need, at a cost of 25 GiB",
		},
		"CPU": {
			mix: []placement.Request{ask(8, placementtest.CPU(8000))}, req: ask(8, placementtest.CPU(16_000)),
			nodes: []placement.Node{machine("narrow", 16_000, 2, 8), machine("wide", 64_000, 2, 8)},
			want:  "wide ranks before narrow, which is at least as good by the policy alone: on narrow the pod would leave GPU memory without the CPU that pods need with it, at a cost of 8 GiB",
		},
		"idle CPU": {
			mix: []placement.Request{ask(8)}, req: ask(8),
			nodes: []placement.Node{machine("a", 128_000, 1, 16, placementtest.Hold("x", placement.Request{CPU: 64_000})), machine("b", 32_000, 1, 16)},
			want:  "b ranks before a, which is at least as good by the policy alone: on a more CPU would stay idle, at a cost of 2 GiB",
		},
		"several GPUs": {
			mix: []placement.Request{ask(8), ask(32, count(4))}, req: ask(8),
			nodes: []placement.Node{machine("idle", 0, 4, 8), machine("pair", 0, 1, 10)},
			want:  "pair ranks before idle, which is at least as good by the policy alone: on idle the pod would take GPUs from pods that need several on one node, at a cost of 11 GiB",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var mix ranking.Mix
			for _, r := range tc.mix {
				mix.Learn(r)
			}
			if tc.policy == "" {
				tc.policy = placement.Binpack
			}
			var nodes []*placement.Node
			for i := range tc.nodes {
				nodes = append(nodes, &tc.nodes[i])
			}
			order := ranking.Rank(1, ranking.Policies{GPU: tc.policy}, tc.req, nodes, ranking.NewPrices(mix, tc.nodes))
			if got := ExplainRanking(order); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}
