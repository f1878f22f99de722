package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/cache"
	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/placement"
	"github.com/gpumem/gpumem/pkg/placement/placementtest"
)

// Each command counts a nominated pod on the GPU on which the extender counts it, which depends
// on the cluster's policy.
func TestCommandsAskByTheClustersPolicy(t *testing.T) {
	a := inventory("gpu-a", 14, 14)
	there := ownedBy("ReplicaSet", makePod(t, "ml/there", "gpu-a", 4, a.Devices[1].UUID))
	comes := with(makePod(t, "ml/comes", "", 3), func(p *v1.Pod) { p.Status.NominatedNodeName = "gpu-a" })
	objects := []runtime.Object{makeNode(t, "gpu-a", a), there, comes, makePod(t, "ml/waits", "", 12)}
	const kept = "needs 12 GiB on one GPU; free: GPU0 11, GPU1 10 (21 in all, fragmented); kept for pods that are nominated to this node: 1"
	for _, tc := range []struct{ args, packed, spread string }{
		{"fit --mem 12", "Fits once in all.", kept},
		{"explain ml/waits", "by GPU memory it fits on 1 of 1 node", kept},
		{"pods --waiting ml/waits", "by GPU memory it fits on gpu-a", kept},
		{"defrag ml/waits", "There is room as it is", "there   ReplicaSet/owner   4 GiB   gpu-a   gpu-a\n"},
	} {
		for policy, want := range map[string]string{"binpack": tc.packed, "spread": tc.spread} {
			client := fake.NewClientset(append([]runtime.Object{extenderDeployment("gpumem-system", "gpumem.dev", policy)}, objects...)...)
			stdout, stderr, err := inspectWith(client, strings.Fields(tc.args)...)
			if said := stdout + fmt.Sprint(err); !strings.Contains(said, want) || stderr != "" {
				t.Errorf("%s, policy %s: want %q in:\n%s%s", tc.args, policy, want, said, stderr)
			}
		}
	}
}

// A pod that the kubelet could take for another fits nowhere until that is admitted, and each
// command says so.
func TestCommandsSayForWhichPodOneWaits(t *testing.T) {
	a := inventory("gpu-a", 14, 14)
	first := makePod(t, "ml/first", "gpu-a", 4, a.Devices[1].UUID)
	asks := func(p *v1.Pod) {
		p.Annotations[testNames(t).UUID()] = string(a.Devices[0].UUID)
		p.Annotations[testNames(t).Policy()] = "binpack"
	}
	second := with(makePod(t, "ml/second", "", 4), asks)
	const waits = "waits until pod ml/first has been admitted by the kubelet, which could take one for the other"
	for _, tc := range []struct{ args, waits, admitted string }{
		{"fit --mem 4 --policy spread", waits, "Fits 5 times in all."},
		{"explain ml/second", "it fits on none of 1 node; gpu-a comes closest: " + waits, "by GPU memory it fits on 1 of 1 node"},
		{"pods --waiting ml/second", "gpu-a: " + waits, "by GPU memory it fits on gpu-a"},
		{"defrag ml/second", "There is room as it is: nobody has to be evicted.\nFor now the pod " + waits + ".\n", "There is room as it is"},
	} {
		for want, started := range map[string]*metav1.Time{tc.waits: nil, tc.admitted: {Time: time.Unix(1700000000, 0)}} {
			first := first.DeepCopy()
			first.Status.StartTime = started
			client := fake.NewClientset(extenderDeployment("gpumem-system", "gpumem.dev", "binpack"), makeNode(t, "gpu-a", a), first, second)
			stdout, stderr, err := inspectWith(client, strings.Fields(tc.args)...)
			if said := stdout + fmt.Sprint(err); !strings.Contains(said, want) || stderr != "" || strings.Contains(said, waits) != (started == nil) {
				t.Errorf("%s: want %q in:\n%s%s", tc.args, want, said, stderr)
			}
		}
	}
}

// As many pods fit as could be bound, one after the other.
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
			h.Settled = random.IntN(2) == 0
			state.AddPod("n", h)
		}
		n, _ := state.Node("n")
		want := 0
		for now := n; inspect.Overdraws(req, now) == nil; want++ {
			pod := placement.PodRef{Namespace: "ml", Name: fmt.Sprint(want), UID: fmt.Sprint("new ", want)}
			if _, err := state.AssumePod(pod, "n", req, policy, time.Unix(1, 0)); err != nil {
				break
			}
			now, _ = state.Node("n")
		}
		got, reason := times(req, n, policy)
		if got != want || (reason == "") != (got > 0) {
			t.Errorf("seed %d, policy %s: it fits %d times (%q), and could be bound %d times", seed, policy, got, reason, want)
		}
		most = max(most, got)
	}
	if most < 3 {
		t.Errorf("%d pods at most say little", most)
	}
}
