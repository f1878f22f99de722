package main

import (
	"testing"

	"github.com/gpumem/gpumem/pkg/decisions"
)

// What is said of a GPU is said in words, whatever the code is that it has.
func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		gpu  decisions.GPU
		node decisions.Node
		want string
	}{
		{want: "would do"},
		{node: decisions.Node{Reason: "Fits"}, want: "would do"},
		{gpu: decisions.GPU{Chosen: true}, want: "chosen"},
		{gpu: decisions.GPU{Reason: "Insufficient"}, node: decisions.Node{Reason: "Fragmented"}, want: "not enough free"},
		{node: decisions.Node{Reason: "Fragmented"}, want: "would do, but too few of the node would"},
		{node: decisions.Node{Reason: "TooFew"}, want: "would do, but too few of the node would"},
		{node: decisions.Node{Reason: "SchedulingDisabled"}, want: "would do, but the node is cordoned"},
		{node: decisions.Node{Reason: "WeakerEnforcement", Message: "this node has advisory"}, want: "would do, but the node does not: this node has advisory"},
		{node: decisions.Node{Reason: "Elsewhere"}, want: "would do, but the node does not: Elsewhere"},
	} {
		if got := verdict(considered{tc.node, tc.gpu}); got != tc.want {
			t.Errorf("%+v on %+v: %q, want %q", tc.gpu, tc.node, got, tc.want)
		}
	}
}
