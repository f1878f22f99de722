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
		b.shutdown.recordUnknown(second)
		b.shutdown.recordUnknown(first)
		b.Drain()
		if waited := b.Now().Sub(second); waited < BindTimeout {
			t.Errorf("it waits until %v after the second was sent, want %v", waited, BindTimeout)
		}
	})
}

// TestBindsThatEndTogether records eight unknown outcomes concurrently, with increasing times. The race
// detector checks the lock.
func TestBindsThatEndTogether(t *testing.T) {
	b := Binder{Now: time.Now}
	sent := b.Now().Add(-BindTimeout)
	var binds sync.WaitGroup
	for i := range 8 {
		binds.Go(func() { b.shutdown.recordUnknown(sent.Add(time.Duration(i-7) * time.Second)) })
	}
	binds.Wait()
	b.Drain()
	if want := sent.Add(BindTimeout); !b.shutdown.lands.Equal(want) || !b.shutdown.hasBegun() {
		t.Errorf("bindings may land until %v, want %v", b.shutdown.lands, want)
	}
	b.shutdown.beginBind()() // does not make a later Drain wait
	b.Drain()
}
