package extender

import (
	"context"
	"fmt"
	"strings"
	"testing"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/history"
)

// kube-scheduler writes each distinct message of a response into a condition of the pod. With many nodes,
// only the closest nodes have a full message.
func TestAnAnswerAboutManyNodesHasFewTexts(t *testing.T) {
	const nodes = 497 // in addition to three nodes of the world
	w := newWorld(t)
	names := []string{"pair", "big", "plain"}
	for i := range nodes {
		name := fmt.Sprintf("n%03d", i)
		names = append(names, name)
		w.Cache.SetNode(name, inventory(
			gpu.Device{UUID: gpu.UUID("GPU-a-" + name), Allocatable: 100}, gpu.Device{UUID: gpu.UUID("GPU-b-" + name), Allocatable: 100}))
		w.Cache.AddPod(name, w.on(name, "GPU-a-"+name, fmt.Sprint(20+i%70)))
		w.Cache.AddPod(name, w.on(name, "GPU-b-"+name, "60"))
	}
	texts := func(result *extenderv1.ExtenderFilterResult) map[string]int {
		out := make(map[string]int)
		for _, of := range []extenderv1.FailedNodesMap{result.FailedNodes, result.FailedAndUnresolvableNodes} {
			for _, text := range of {
				out[text]++
			}
		}
		return out
	}
	ask := func(uuid string, names []string) map[string]int {
		pod := w.pod("asks", "90")
		if uuid != "" {
			pod.Annotations = map[string]string{w.Names.UUID(): uuid}
		}
		return texts(w.Filter(context.Background(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &names}))
	}
	for name, tc := range map[string]struct {
		uuid   string
		asked  []string
		most   int // maximum number of distinct messages
		common string
		full   bool // some messages contain the free memory
	}{
		"fragmented":             {"", names, history.MaxNodes + 4, "node(s) unfit: the pod needs 90 GiB on one GPU; too little is free here", true},
		"fragmented in a sample": {"", names[:230], 4, "node(s) unfit: the pod needs 90 GiB on one GPU; too little is free here", false},
		"no such GPU":            {"GPU-of-no-node", names, 4, "node(s) unfit: the pod needs 90 GiB on one GPU that matches GPU-of-no-node; no GPU here matches", false},
		"few nodes":              {"", names[3:9], 6, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			got := ask(tc.uuid, tc.asked)
			full := false
			for text := range got {
				full = full || strings.Contains(text, "free: GPU0")
			}
			t.Logf("%d texts", len(got))
			if len(got) > tc.most || tc.common != "" && got[tc.common] < len(tc.asked)/2 || tc.full && !full {
				t.Errorf("%d texts, want %d at most, and this of most nodes: %q; got %v", len(got), tc.most, tc.common, got)
			}
		})
	}
}

// on returns a pod with the given units on a GPU of a node.
func (w *world) on(node, uuid, units string) placement.Holding {
	h := w.holding("on-"+node+"-"+uuid, units)
	h.Assignment = placement.Assignment{Shares: []placement.Share{{Device: gpu.UUID(uuid)}}}.WithShares(h.Request)
	return h
}
