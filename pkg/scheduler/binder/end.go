package binder

import (
	"sync"
	"time"
)

// end tracks the shutdown of a process that binds pods.
type end struct {
	mu    sync.Mutex
	ended bool
	binds sync.WaitGroup // in progress
	lands time.Time      // until then, a binding of unknown outcome may land
}

// unknown records a binding whose outcome the binder will not learn.
func (e *end) unknown(sent time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if lands := sent.Add(BindTimeout); lands.After(e.lands) {
		e.lands = lands
	}
}

// enter counts a Bind until leave is called. Drain does not wait for a Bind that begins after it, because
// NotReady rejects that Bind.
func (e *end) enter() (leave func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return func() {}
	}
	e.binds.Add(1)
	return e.binds.Done
}

// begun reports whether the shutdown has begun.
func (e *end) begun() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}

// Drain rejects new Binds. It returns when all sent bindings have been answered or cannot land any more. Then
// another process may decide.
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
