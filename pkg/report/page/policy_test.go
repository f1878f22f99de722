package page

import (
	"strings"
	"testing"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/page/pagetest"
)

// By the scheduler's policy, the page reserves a nominated pod's memory on the same GPU as the scheduler.
func TestThePageAsksByTheExtendersPolicy(t *testing.T) {
	w := newWorld()
	w.Offer("a", "T4", 14, 14)
	w.Place("ml/there", "a", 1, 4)
	w.NominatePod("a", placement.PodRef{Namespace: "ml", Name: "comes", UID: "comes"}, pagetest.Asks(3), placement.Assignment{}, time.Time{})
	w.Wait("ml/huge", 12)
	for policy, want := range map[placement.Policy]string{
		placement.Binpack: "its GPU memory fits on a",
		placement.Spread:  "a: needs 12 GiB on one GPU; free: GPU0 11, GPU1 10 (21 in all, fragmented)",
	} {
		got := NewFleet(Source{
			Nodes: w.Nodes, Missing: func() string { return "" }, Used: func() map[gpu.UUID]int64 { return nil },
			Facts: func([]placement.Node) inspect.Facts { return inspect.Facts{Policy: policy, Waiting: w.Waiting} },
		})
		if len(got.Waiting) != 1 || !strings.HasPrefix(got.Waiting[0].Reason, want) {
			t.Errorf("policy %s: %v, want %q", policy, got.Waiting, want)
		}
	}
}
