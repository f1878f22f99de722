package binder

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Two bindings have an unknown outcome. The binding that was sent last may land last, even if the binder has
// recorded it first.
func TestDrainWaitsForTheLastThatMayLand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Binder{Now: time.Now}
		first := b.Now()
		second := first.Add(6 * time.Second)
		time.Sleep(BindTimeout)
		b.recordUnknown(second)
		b.recordUnknown(first)
		b.Drain()
		if waited := b.Now().Sub(second); waited < BindTimeout {
			t.Errorf("it waits until %v after the second was sent, want %v", waited, BindTimeout)
		}
	})
}

// TestBindsThatEndTogether records eight unknown outcomes concurrently, with increasing times. Drain waits for
// the last one.
func TestBindsThatEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Binder{Now: time.Now}
		begin := b.Now()
		var binds sync.WaitGroup
		for i := range 8 {
			binds.Go(func() { b.recordUnknown(begin.Add(time.Duration(i-7) * time.Second)) })
		}
		binds.Wait()
		b.Drain()
		if waited := b.Now().Sub(begin); waited != BindTimeout || !b.draining {
			t.Errorf("it waits for %v, want %v", waited, BindTimeout)
		}
		b.Drain() // does not wait any more
		if waited := b.Now().Sub(begin); waited != BindTimeout {
			t.Errorf("it waits again, until %v", waited)
		}
	})
}
