package binder

import (
	"testing"
	"testing/synctest"
	"time"
)

// Two bindings have an unknown outcome. The one that was sent last may land last, in whichever order the
// binder gave them up.
func TestDrainWaitsForTheLastThatMayLand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Binder{Now: time.Now}
		first := b.Now()
		second := first.Add(6 * time.Second)
		time.Sleep(BindTimeout)
		b.end.unknown(second)
		b.end.unknown(first)
		b.Drain()
		if waited := b.Now().Sub(second); waited < BindTimeout {
			t.Errorf("it waits until %v after the second was sent, want %v", waited, BindTimeout)
		}
	})
}
