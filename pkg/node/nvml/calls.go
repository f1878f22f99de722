package nvml

import (
	"context"
	"slices"
	"time"
)

// calls are calls of the library that may hang in the driver. The time limit ends the wait and not the call: until it
// returns, its like is not made again, and the next wait for it gets its answer. They are for one goroutine.
type calls struct {
	timeout time.Duration // of one wait
	pending map[string]*pending
}

// A pending call was begun, and its answer was not used.
type pending struct {
	done   chan struct{}
	answer any // once done is closed
}

func (p *pending) returned() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// anyHanging reports whether one of these calls hangs, of all calls when none is named.
func (c calls) anyHanging(names ...string) bool {
	for name, p := range c.pending {
		if !p.returned() && (len(names) == 0 || slices.Contains(names, name)) {
			return true
		}
	}
	return false
}

// late reports whether the call of that name has returned after nobody waited for it.
func (c calls) late(name string) bool {
	p := c.pending[name]
	return p != nil && p.returned()
}

// begin starts a call, unless one of that name has no used answer yet.
func begin[T any](c calls, name string, f func() T) *pending {
	if p := c.pending[name]; p != nil {
		return p
	}
	p := &pending{done: make(chan struct{})}
	c.pending[name] = p
	go func() {
		p.answer = f()
		close(p.done)
	}()
	return p
}

// take returns the answer of a call that has returned. The next of that name is a new call.
func take[T any](c calls, name string) (answer T, ok bool) {
	p := c.pending[name]
	if p == nil || !p.returned() {
		return answer, false
	}
	delete(c.pending, name)
	answer, ok = p.answer.(T)
	return answer, ok
}

// renew makes a call, and returns the late answer to the one before where it does not answer in time.
func renew[T any](ctx context.Context, c calls, name string, f func() T) (answer T, ok bool) {
	late, ok := take[T](c, name)
	if now, ok := call(ctx, c, name, f); ok {
		return now, true
	}
	return late, ok
}

// call makes a call, or waits again for one that is late, until the context or the time is over.
func call[T any](ctx context.Context, c calls, name string, f func() T) (answer T, ok bool) {
	p := begin(c, name, f)
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	return take[T](c, name)
}
