package decider

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/report/history"
)

// TestBestOfEqualNodesIsTheChosenOne verifies that kube-scheduler's scores choose among equal nodes, while the cycle
// reports them as equal.
func TestBestOfEqualNodesIsTheChosenOne(t *testing.T) {
	w := newWorld(t)
	log := history.NewLog(10)
	w.Decided = log.Add
	var names []string
	for i := range 3 {
		names = append(names, fmt.Sprintf("node-%d", i))
		w.Cache.SetNode(names[i], gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{
			{UUID: gpu.UUID(fmt.Sprintf("GPU-%04d", i)), Allocatable: 16, MemoryMiB: 16384},
		}})
	}
	passes := func(node string) bool { return slices.Contains(names, node) }
	c := w.begin("p", "10")
	best := w.Best(c, nil, passes, func(nodes []string) string {
		if !c.Equal() || !slices.Equal(slices.Sorted(slices.Values(nodes)), names) {
			t.Errorf("to choose from: %v, equal: %t", nodes, c.Equal())
		}
		return names[1]
	})
	if best != names[1] || c.Equal() {
		t.Errorf("node %q, equal: %t; want %s", best, c.Equal(), names[1])
	}
	var recorded []string
	for _, d := range log.Pods("", "")[0].Decisions {
		recorded = append(recorded, d.Verb+" "+d.Node)
	}
	if !slices.Contains(recorded, history.Prioritize+" "+names[1]) {
		t.Errorf("recorded %q", recorded)
	}
	none := func([]string) string { t.Error("there is nothing to choose from"); return "" }
	if best := w.Best(w.begin("q", "10"), nil, func(node string) bool { return node == names[2] }, none); best != names[2] {
		t.Errorf("node %q, want the only one that passes", best)
	}
	if best := w.Best(w.begin("r", "10"), nil, func(string) bool { return false }, none); best != "" {
		t.Errorf("node %q, and none passes", best)
	}
}
