package inspect_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/placement/placementtest"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// A report gives the scheduler's reason for a pod that the scheduler refuses on all nodes.
func TestAReportSaysWhatTheExtenderDecides(t *testing.T) {
	t4, a10 := placementtest.Model("T4"), placementtest.Model("A10")
	of := placementtest.Models
	admitted := func(h placement.Holding) placement.Holding {
		h.Admitted = true
		return h
	}
	second := placement.PodRef{Namespace: "ml", Name: "second", UID: "2"}
	const confusable = "waits until the kubelet has admitted pod ns/first, because the kubelet could confuse the two"
	both := inventory(device(0, 14, t4), device(1, 23, a10))
	comes := hold("comes", ask(3))
	spread := node(inventory(device(0, 14), device(1, 14)), admitted(hold("there", ask(4), 1))).WithNominated([]placement.Holding{comes})
	const kept = "needs 12 GiB on one GPU; free: GPU0 11, GPU1 10 (21 in all, fragmented); reserved for pods nominated to this node: 1"
	for name, tc := range map[string]struct {
		node   placement.Node
		req    placement.Request
		policy placement.Policy
		want   string // the refusal; empty if the pod fits
	}{
		"the kubelet could take it for another":      {node(both, hold("first", ask(3, of("T4")), 0)), ask(3, of("A10")), placement.Binpack, confusable},
		"which it has admitted":                      {node(both, admitted(hold("first", ask(3, of("T4")), 0))), ask(3, of("A10")), placement.Binpack, ""},
		"what is nominated is packed":                {spread, ask(12), placement.Binpack, ""},
		"what is nominated is spread, as the policy": {spread, ask(12), placement.Spread, kept},
	} {
		t.Run(name, func(t *testing.T) {
			_, refusal := decide.Decide(tc.node, second, tc.req, tc.policy)
			got := ""
			if refusal != nil {
				got = reasons.Refusal(refusal)
			}
			if got != tc.want {
				t.Fatalf("the extender says %q, want %q", got, tc.want)
			}
			waits := inspect.WaitFacts{Pod: second, Request: tc.req}
			report := inspect.New([]placement.Node{tc.node}, inspect.Facts{Policy: tc.policy, Waiting: []inspect.WaitFacts{waits}})
			want := "n: " + tc.want
			if tc.want == "" {
				want = "its GPU memory fits on n; " + inspect.AskEvents
			}
			if got := report.Waiting[0].Explain(); got != want {
				t.Errorf("the report says %q, want %q", got, want)
			}
		})
	}
}

// The result for a node agrees with the cache's answer to AssumePod on this node.
func TestAChanceIsWhatBecomesOfABind(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(4000) {
		random := rand.New(rand.NewPCG(seed, 31))
		inv, holdings, req := placementtest.World(random)
		policy := placementtest.Pick(random, placement.Binpack, placement.Spread)
		state := cache.New()
		state.SetNode("n", inv)
		for i, h := range holdings {
			if random.IntN(4) == 0 {
				state.NominatePod("n", h.Pod, h.Request, placementtest.Pick(random, h.Assignment, placement.Assignment{}), time.Time{})
				continue
			}
			h.Admitted = random.IntN(2) == 0
			holdings[i] = h
			state.AddPod("n", h)
		}
		n, _ := state.Node("n")
		pod := placement.PodRef{Namespace: "ml", Name: "waits", UID: "waits"}
		chance := inspect.Facts{Policy: policy}.EvaluateNode(inspect.WaitFacts{Pod: pod, Request: req}, n)
		_, err := state.AssumePod(pod, "n", req, policy, time.Unix(1, 0))
		said := ""
		switch {
		case chance.Refusal != nil && chance.Refusal.Reason == inspect.Overdrawn:
			seen[inspect.Overdrawn]++
			continue // kube-scheduler rejects the node itself
		case chance.Refusal != nil:
			seen[chance.Refusal.Reason]++
			said = chance.Explain()
		case !chance.Fits():
			seen[chance.Reason.String()]++
			said = reasons.Verdict(chance.Verdict)
		default:
			seen["Good"]++
		}
		decided := ""
		if err != nil {
			decided = reasons.Error(err)
		}
		if diff := cmp.Diff(decided, said); diff != "" || chance.IsPlaceable() != (err == nil) {
			t.Errorf("seed %d, policy %s: good is %t (-bind +chance):\n%s", seed, policy, chance.IsPlaceable(), diff)
		}
	}
	for _, reason := range []string{"Good", decide.Confusable, inspect.Overdrawn, "Insufficient", "Fragmented", "Occupied"} {
		if seen[reason] == 0 {
			t.Errorf("no seed ends in %s: %s", reason, strings.TrimPrefix(fmt.Sprint(seen), "map"))
		}
	}
}
