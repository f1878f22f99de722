package claims

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

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
	if prepared, err := Recover(t.Context(), r.disk, nil, domain, node, 1024, zap.NewNop()); err != nil || len(prepared) != 2 {
		t.Errorf("%d claims, want 2: %v", len(prepared), err)
	}
}

// A node changes once its label says so and nothing was left for a while: not while the label waits
// for the last claim, and not for a label that was there for a moment.
func TestWhenANodeIsLeft(t *testing.T) {
	type state struct {
		labelled bool
		left     int
	}
	for name, test := range map[string]struct {
		after map[time.Duration]state // of claims: what is so from then on
		want  time.Duration           // 0: never
	}{
		"nothing changes":              {map[time.Duration]state{0: {true, 0}}, 0},
		"nothing was there":            {map[time.Duration]state{0: {true, 0}, time.Minute: {false, 0}}, time.Minute + quiet},
		"the last claim is waited for": {map[time.Duration]state{0: {false, 1}, time.Minute: {false, 0}}, time.Minute + quiet},
		"one more came just then":      {map[time.Duration]state{0: {false, 0}, time.Second: {false, 1}, time.Minute: {false, 0}}, time.Minute + quiet},
		"the label is put back":        {map[time.Duration]state{0: {false, 0}, time.Second: {true, 0}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				now := func() state {
					at := slices.Max(slices.Collect(func(yield func(time.Duration) bool) {
						for at := range test.after {
							if at <= time.Since(begin) && !yield(at) {
								return
							}
						}
					}))
					return test.after[at]
				}
				var changed atomic.Pointer[chan struct{}] // closed and replaced
				changed.Store(new(make(chan struct{})))
				for at := range test.after {
					if at > 0 {
						time.AfterFunc(at, func() { close(*changed.Swap(new(make(chan struct{})))) })
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				got := Left(ctx,
					func() (bool, <-chan struct{}) { return !now().labelled, *changed.Load() },
					func() (int, <-chan struct{}) { return now().left, nil })
				if got != (test.want > 0) || got && time.Since(begin) != test.want {
					t.Errorf("left: %t after %s, want after %s", got, time.Since(begin), test.want)
				}
			})
		})
	}
}
