package binder

import (
	"sync"
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

// TestBindsThatEndTogether report unknown outcomes concurrently. The race detector checks the lock.
func TestBindsThatEndTogether(t *testing.T) {
	b := Binder{Now: time.Now}
	sent := b.Now().Add(-BindTimeout)
	var binds sync.WaitGroup
	for i := range 8 {
		binds.Go(func() {
			leave := b.end.enter()
			defer leave()
			b.end.unknown(sent.Add(-time.Duration(i) * time.Second))
			b.end.begun()
		})
	}
	binds.Wait()
	b.Drain()
	if want := sent.Add(BindTimeout); !b.end.lands.Equal(want) || !b.end.begun() {
		t.Errorf("bindings may land until %v, want %v", b.end.lands, want)
	}
	b.end.enter()() // does not make a later Drain wait
	b.Drain()
}
