package extender

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// TestTheIndexChoosesTheSameNode compares the node that the filter takes from the index with the best of the nodes
// that it has evaluated one by one, in random clusters with nominated, expected and confusable pods.
func TestTheIndexChoosesTheSameNode(t *testing.T) {
	chosen, waits := 0, 0
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t)
		w.Log, w.Alone = zap.NewNop(), true
		policies := append(placement.Policies(), "")
		w.Policies = ranking.Policies{GPU: placementtest.Pick(random, policies...), Node: placementtest.Pick(random, policies...)}
		names := []string{"pair", "big", "plain", "unknown", "pair"}
		question := func(uid string, req placement.Request) cache.Question {
			req.Priority, req.InShares = random.Int32N(3), random.IntN(4) == 0
			return cache.NewQuestion(placement.PodRef{Namespace: "ns", Name: uid, UID: uid}, req, w.Policies.GPU)
		}
		for i := range 8 {
			name := fmt.Sprint("n", i)
			names = append(names, name)
			inv, holdings, _ := placementtest.World(random)
			if random.IntN(4) == 0 {
				for j := range inv.Devices {
					inv.Devices[j].ShareMiB = 1024
				}
			}
			w.Cache.SetNode(name, inv)
			for _, h := range holdings {
				h.Pod.UID, h.Admitted = name+h.Pod.UID, random.IntN(3) > 0
				w.Cache.AddPod(name, h)
			}
		}
		_, _, same := placementtest.World(random)
		for i := range random.IntN(6) {
			_, _, req := placementtest.World(random)
			q := question(fmt.Sprint("other-", i), placementtest.Pick(random, req, same))
			if node := placementtest.Pick(random, names...); random.IntN(2) == 0 {
				w.Cache.Expect(q.Pod, node, q.Request, q.Fallback, w.now)
			} else {
				w.Cache.NominatePod(node, q.Pod, q.Request, placement.Assignment{}, time.Time{})
			}
		}
		c := &decider.Cycle{Question: question("pod", same)}
		if random.IntN(3) == 0 {
			w.Cache.NominatePod(placementtest.Pick(random, names...), c.Pod, c.Request, placement.Assignment{}, time.Time{})
		}
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		names = names[:1+random.IntN(len(names))]

		c.Expecting = w.Cache.Unexpect(c.Pod.UID)
		got := w.best(c, names)
		w.Cache.Unexpect(c.Pod.UID)
		fit, _ := w.splitNodes(c, names)
		if len(fit) == 0 {
			waits++
			if got != "" {
				t.Errorf("seed %d: %s by the index, and the pod fits none of %v", seed, got, names)
			}
			continue
		}
		chosen++
		if diff := cmp.Diff(w.selectNodes(c, slices.Compact(slices.Sorted(slices.Values(fit))), true), []string{got}); diff != "" {
			t.Errorf("seed %d: (-evaluated one by one +by the index):\n%s", seed, diff)
		}
	}
	if chosen < 200 || waits < 200 {
		t.Errorf("%d pods fit and %d do not, want 200 of each", chosen, waits)
	}
}
