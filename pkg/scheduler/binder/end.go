package binder

import (
	"sync"
	"time"
)

// end is how a process stops to bind.
type end struct {
	mu    sync.Mutex
	ended bool
	binds sync.WaitGroup // under way
	lands time.Time      // until then what was sent may land, though nothing is under way any more
}

// unknown notes that a binding may land that no more is heard of.
func (e *end) unknown(sent time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if lands := sent.Add(BindTimeout); lands.After(e.lands) {
		e.lands = lands
	}
}

// enter counts a Bind until leave is called. One that begins too late is not waited for, and
// NotReady has it refused.
func (e *end) enter() (leave func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return func() {}
	}
	e.binds.Add(1)
	return e.binds.Done
}

// begun reports whether nothing is to be bound any more.
func (e *end) begun() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}

// Drain has nothing more bound, and returns when all that was sent is answered, or cannot land
// any more: then another process may decide.
func (b *Binder) Drain() {
	b.end.mu.Lock()
	b.end.ended = true
	b.end.mu.Unlock()
	b.end.binds.Wait()
	b.end.mu.Lock()
	left := b.end.lands.Sub(b.Now())
	b.end.mu.Unlock()
	<-time.After(left)
}
