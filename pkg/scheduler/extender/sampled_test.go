package extender

import "testing"

// kube-scheduler 1.36 uses these numbers without percentageOfNodesToScore.
func TestSampled(t *testing.T) {
	for _, tc := range []struct {
		asked, all int
		want       bool
	}{
		{50, 100, false}, // kube-scheduler evaluates all of 100 nodes
		{100, 101, true},
		{100, 200, true},
		{99, 200, false},
		{230, 500, true},
		{231, 500, false},
		{500, 500, false},
		{420, 1000, true},
		{500, 5000, true},
		{5000, 5000, false},
		{2500, 50_000, true},
	} {
		if got := new(Extender).isSampled(tc.asked, tc.all); got != tc.want {
			t.Errorf("a question about %d of %d nodes: sampled %t, want %t", tc.asked, tc.all, got, tc.want)
		}
	}
}
