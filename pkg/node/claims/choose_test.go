package claims

import (
	"strings"
	"testing"

	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

func TestANodeHasOneOwner(t *testing.T) {
	for _, test := range []struct {
		labelled bool
		prepared int
		holders  []string
		want     bool
		why      string
	}{
		{labelled: true, want: true, why: "label says so"},
		{labelled: true, prepared: 2, want: true, why: "label says so"},
		{labelled: true, holders: []string{"ml/a", "ml/b"}, want: false, why: "2 pods with the extended resource have ended, ml/a among them"},
		{want: false, why: "no label"},
		{holders: []string{"ml/a"}, want: false, why: "no label"},
		{prepared: 2, want: true, why: "once 2 prepared claims are given back"},
	} {
		got, why := Choose(test.labelled, test.prepared, test.holders)
		if got != test.want || !strings.Contains(why, test.why) {
			t.Errorf("%+v: %t, %s", test, got, why)
		}
	}
}

func TestPreparedClaimsAreCounted(t *testing.T) {
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	for _, name := range []string{"a", "b"} {
		if got := r.one(t, allocated(name, result(gpuA, 1, 0))); got.Err != nil {
			t.Fatal(got.Err)
		}
	}
	if n, err := Prepared(r.disk); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
