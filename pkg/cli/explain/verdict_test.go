package explain

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/report/decisions"
)

func TestWhatWasDecided(t *testing.T) {
	small, full := "needs 3 GiB on one GPU; free: GPU0 2 (2 GiB in all)", "needs 3 GiB on one GPU; free: GPU0 0 (0 GiB in all)"
	unfit := func(message string, asked int, nodes ...decisions.Node) decisions.Decision {
		return decisions.Decision{Verb: decisions.Filter, Result: decisions.Unfit, Message: message, Asked: asked, Nodes: nodes}
	}
	node := func(name, message string) decisions.Node { return decisions.Node{Name: name, Message: message} }
	scored := func(name string, score int64) decisions.Node { return decisions.Node{Name: name, Score: &score} }
	for name, tc := range map[string]struct {
		decision decisions.Decision
		want     []string
	}{
		"each node": {unfit(small, 2, node("gpu-a", small), node("gpu-b", full)),
			[]string{"unfit: fits on 0 of the 2 nodes that kube-scheduler asked about", "gpu-a: " + small, "gpu-b: " + full}},
		"the same of two, and others that are not told of": {unfit(small, 9, node("gpu-a", small), node("gpu-b", full), node("gpu-c", small)),
			[]string{"unfit: fits on 0 of the 9 nodes that kube-scheduler asked about", "gpu-a, gpu-c: " + small, "gpu-b: " + full, "and 6 more nodes"}},
		"the same of all": {unfit("gpu-count is two", 9), []string{"unfit: gpu-count is two"}},
		"it fits elsewhere": {decisions.Decision{Verb: decisions.Filter, Result: decisions.Fits, Asked: 2, Fit: 1, Nodes: []decisions.Node{node("gpu-a", small)}},
			[]string{"fits on 1 of the 2 nodes that kube-scheduler asked about", "gpu-a: " + small}},
		"it fits elsewhere, and others are not told of": {decisions.Decision{Verb: decisions.Filter, Result: decisions.Fits, Asked: 9, Fit: 4, Nodes: []decisions.Node{node("gpu-a", small), node("gpu-b", full)}},
			[]string{"fits on 4 of the 9 nodes that kube-scheduler asked about", "gpu-a: " + small, "gpu-b: " + full, "and 3 more nodes"}},
		"one node": {unfit(small, 1, node("gpu-a", small)), []string{"unfit: fits on 0 of the 1 node that kube-scheduler asked about", "gpu-a: " + small}},
		"nodes in order": {
			decisions.Decision{Verb: decisions.Prioritize, Result: decisions.Fits, Asked: 5, Fit: 5, Node: "a10", Nodes: []decisions.Node{scored("a10", 10), scored("t4", 7), scored("b", 5), scored("c", 3)}},
			[]string{"best of 5 nodes, 10 is most: a10 10, t4 7, b 5"},
		},
		"nodes in an order that is not the policy's alone": {
			decisions.Decision{Verb: decisions.Prioritize, Result: decisions.Fits, Asked: 2, Fit: 2, Node: "a10", Nodes: []decisions.Node{scored("a10", 10), scored("t4", 5)}, Why: "a10 ranks before t4: why"},
			[]string{"best of 2 nodes, 10 is most: a10 10, t4 5", "a10 ranks before t4: why"},
		},
		"it fits everywhere": {decisions.Decision{Verb: decisions.Filter, Result: decisions.Fits, Asked: 2, Fit: 2}, []string{"fits on 2 of the 2 nodes that kube-scheduler asked about"}},
	} {
		if diff := cmp.Diff(tc.want, append([]string{outcome(tc.decision)}, details(tc.decision)...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Every reason has a verdict in words, also an unknown one.
func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		gpu  decisions.GPU
		node decisions.Node
		want string
	}{
		{want: "fits"},
		{node: decisions.Node{Reason: "Fits"}, want: "fits"},
		{gpu: decisions.GPU{Chosen: true}, want: "chosen"},
		{gpu: decisions.GPU{Reason: "Occupied"}, want: "occupied"},
		{gpu: decisions.GPU{Reason: "Insufficient"}, node: decisions.Node{Reason: "Fragmented"}, want: "not enough free"},
		{gpu: decisions.GPU{Reason: decisions.InsufficientCores}, want: "not enough cores free"},
		{gpu: decisions.GPU{Reason: "OfANewerVersion"}, node: decisions.Node{Reason: "Insufficient"}, want: "does not fit: OfANewerVersion"},
		{node: decisions.Node{Reason: "Fragmented"}, want: "would fit, but too few GPUs of the node do"},
		{node: decisions.Node{Reason: "TooFew"}, want: "would fit, but too few GPUs of the node do"},
		{node: decisions.Node{Reason: "Unhealthy", Message: "would fit, but GPU1 is cordoned"}, want: "would fit, but too few GPUs of the node do"},
		{gpu: decisions.GPU{Reason: "Unhealthy", Unhealthy: "XID 79", Status: gpu.Unhealthy("XID 79")}, want: "unhealthy: XID 79"},
		{gpu: decisions.GPU{Reason: "Unhealthy", Unhealthy: "cordoned", Status: gpu.Status{Cordoned: true}}, want: "cordoned"},
		{gpu: decisions.GPU{Reason: "Unhealthy", Unhealthy: "cordoned"}, want: "takes no new pods: cordoned"},
		{node: decisions.Node{Reason: "SchedulingDisabled", Message: "the node is cordoned"}, want: "would fit, but the node is cordoned"},
		{node: decisions.Node{Reason: "Withheld", Message: "its kubelet offers no gpumem.dev/gpu-mem"}, want: "would fit, but the node's kubelet offers no GPU memory"},
		{gpu: decisions.GPU{Reason: "Unhealthy"}, node: decisions.Node{Reason: "Withheld"}, want: "takes no new pods"},
		{node: decisions.Node{Reason: "WeakerEnforcement", Message: "this node has advisory"}, want: "would fit, but the node does not take it: this node has advisory"},
		{node: decisions.Node{Reason: "Elsewhere"}, want: "would fit, but the node does not take it: Elsewhere"},
	} {
		if got := verdict(considered{tc.node, tc.gpu}); got != tc.want {
			t.Errorf("%+v on %+v: %q, want %q", tc.gpu, tc.node, got, tc.want)
		}
	}
}
