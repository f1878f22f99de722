package explain

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/report/history"
)

func TestWhatWasDecided(t *testing.T) {
	small, full := "needs 3 GiB on one GPU; free: GPU0 2 (2 GiB in all)", "needs 3 GiB on one GPU; free: GPU0 0 (0 GiB in all)"
	unfit := func(message string, asked int, nodes ...history.Node) history.Decision {
		return history.Decision{Verb: history.Filter, Result: history.Unfit, Message: message, Asked: asked, Nodes: nodes}
	}
	node := func(name, message string) history.Node { return history.Node{Name: name, Message: message} }
	scored := func(name string, score int64) history.Node { return history.Node{Name: name, Score: &score} }
	for name, tc := range map[string]struct {
		decision history.Decision
		want     []string
	}{
		"each node": {unfit(small, 2, node("gpu-a", small), node("gpu-b", full)),
			[]string{"unfit: fits on 0 of the 2 nodes that kube-scheduler asked about", "gpu-a: " + small, "gpu-b: " + full}},
		"the same of two, and others that are not told of": {unfit(small, 9, node("gpu-a", small), node("gpu-b", full), node("gpu-c", small)),
			[]string{"unfit: fits on 0 of the 9 nodes that kube-scheduler asked about", "gpu-a, gpu-c: " + small, "gpu-b: " + full, "and 6 more nodes"}},
		"the same of all": {unfit("gpu-count is two", 9), []string{"unfit: gpu-count is two"}},
		"it fits elsewhere": {history.Decision{Verb: history.Filter, Result: history.Fits, Asked: 2, Fit: 1, Nodes: []history.Node{node("gpu-a", small)}},
			[]string{"fits on 1 of the 2 nodes that kube-scheduler asked about", "gpu-a: " + small}},
		"it fits elsewhere, and others are not told of": {history.Decision{Verb: history.Filter, Result: history.Fits, Asked: 9, Fit: 4, Nodes: []history.Node{node("gpu-a", small), node("gpu-b", full)}},
			[]string{"fits on 4 of the 9 nodes that kube-scheduler asked about", "gpu-a: " + small, "gpu-b: " + full, "and 3 more nodes"}},
		"one node": {unfit(small, 1, node("gpu-a", small)), []string{"unfit: fits on 0 of the 1 node that kube-scheduler asked about", "gpu-a: " + small}},
		"nodes in order": {
			history.Decision{Verb: history.Prioritize, Result: history.Fits, Asked: 5, Fit: 5, Node: "a10", Nodes: []history.Node{scored("a10", 10), scored("t4", 7), scored("b", 5), scored("c", 3)}},
			[]string{"best of 5 nodes (scores up to 10): a10 10, t4 7, b 5"},
		},
		"nodes in an order that is not the policy's alone": {
			history.Decision{Verb: history.Prioritize, Result: history.Fits, Asked: 2, Fit: 2, Node: "a10", Nodes: []history.Node{scored("a10", 10), scored("t4", 5)}, Why: "a10 ranks before t4: why"},
			[]string{"best of 2 nodes (scores up to 10): a10 10, t4 5", "a10 ranks before t4: why"},
		},
		"it fits everywhere": {history.Decision{Verb: history.Filter, Result: history.Fits, Asked: 2, Fit: 2}, []string{"fits on 2 of the 2 nodes that kube-scheduler asked about"}},
	} {
		if diff := cmp.Diff(tc.want, append([]string{outcome(tc.decision)}, details(tc.decision)...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Every reason has a verdict in words, even a reason that the command does not know.
func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		gpu  history.GPU
		node history.Node
		want string
	}{
		{want: "fits"},
		{node: history.Node{Reason: "Fits"}, want: "fits"},
		{gpu: history.GPU{Chosen: true}, want: "chosen"},
		{gpu: history.GPU{Reason: "Occupied"}, want: "occupied"},
		{gpu: history.GPU{Reason: "Insufficient"}, node: history.Node{Reason: "Fragmented"}, want: "not enough free"},
		{gpu: history.GPU{Reason: history.InsufficientCores}, want: "not enough cores free"},
		{gpu: history.GPU{Reason: "OfANewerVersion"}, node: history.Node{Reason: "Insufficient"}, want: "does not fit: OfANewerVersion"},
		{node: history.Node{Reason: "Fragmented"}, want: "would fit, but too few GPUs of the node do"},
		{node: history.Node{Reason: "TooFew"}, want: "would fit, but too few GPUs of the node do"},
		{node: history.Node{Reason: "Unhealthy", Message: "would fit, but GPU1 is cordoned"}, want: "would fit, but too few GPUs of the node do"},
		{gpu: history.GPU{Reason: "Unhealthy", Unhealthy: "XID 79", Status: gpu.Unhealthy("XID 79")}, want: "unhealthy: XID 79"},
		{gpu: history.GPU{Reason: "Unhealthy", Unhealthy: "cordoned", Status: gpu.Status{Cordoned: true}}, want: "cordoned"},
		{gpu: history.GPU{Reason: "Unhealthy", Unhealthy: "cordoned"}, want: "takes no new pods: cordoned"},
		{node: history.Node{Reason: "SchedulingDisabled", Message: "the node is cordoned"}, want: "would fit, but the node is cordoned"},
		{node: history.Node{Reason: "Withheld", Message: "its kubelet offers no gpumem.dev/gpu-mem"}, want: "would fit, but the node's kubelet offers no GPU memory"},
		{gpu: history.GPU{Reason: "Unhealthy"}, node: history.Node{Reason: "Withheld"}, want: "takes no new pods"},
		{node: history.Node{Reason: "WeakerEnforcement", Message: "this node has advisory"}, want: "would fit, but the node does not take it: this node has advisory"},
		{node: history.Node{Reason: "Elsewhere"}, want: "would fit, but the node does not take it: Elsewhere"},
	} {
		if got := verdict(considered{tc.node, tc.gpu}); got != tc.want {
			t.Errorf("%+v on %+v: %q, want %q", tc.gpu, tc.node, got, tc.want)
		}
	}
}
