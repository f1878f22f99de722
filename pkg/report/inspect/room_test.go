package inspect_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// CountFits equals the number of pods that can be bound one after the other.
func TestFitCountsWhatCouldBeBound(t *testing.T) {
	most := 0
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 37))
		inv, holdings, req := placementtest.World(random)
		if req.Empty() {
			continue
		}
		policy := placementtest.Pick(random, placement.Binpack, placement.Spread)
		state := cache.New()
		state.SetNode("n", inv)
		for _, h := range holdings {
			h.Admitted = random.IntN(2) == 0
			state.AddPod("n", h)
		}
		n, _ := state.Node("n")
		want := 0
		for now := n; inspect.OverdrawnRefusal(req, now) == nil; want++ {
			pod := placement.PodRef{Namespace: "ml", Name: fmt.Sprint(want), UID: fmt.Sprint("new ", want)}
			if _, err := state.AssumePod(pod, "n", req, policy, time.Unix(1, 0)); err != nil {
				break
			}
			now, _ = state.Node("n")
		}
		got, reason := inspect.CountFits(req, n, policy)
		if got != want || (reason == "") != (got > 0) {
			t.Errorf("seed %d, policy %s: it fits %d times (%q), and could be bound %d times", seed, policy, got, reason, want)
		}
		most = max(most, got)
	}
	if most < 3 {
		t.Errorf("%d pods at most say little", most)
	}
}
