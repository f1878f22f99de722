package decider

import (
	"testing"

	"github.com/gpumem/gpumem/pkg/report/history"
)

// If kube-scheduler accepts the hinted node, a cycle makes few allocations from Begin to the first Refuse.
// The limit is about twice the present number.
func TestAllocationsOfAHintedPod(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("pod", "10")
	made := testing.AllocsPerRun(20, func() {
		c, refusal, err := w.Begin(history.Filter, pod, 1)
		if c == nil || refusal != nil || err != nil {
			t.Fatalf("begin: %v, %v, %v", c, refusal, err)
		}
		if w.Best(c, nil, func(string) bool { return true }, func(nodes []string) string { return nodes[0] }) == "" {
			t.Fatal("no node is hinted")
		}
		if !w.fits(c) {
			t.Fatal("the node is refused")
		}
	})
	if made > 80 {
		t.Errorf("%.0f allocations, want 80 at most", made)
	}
}
