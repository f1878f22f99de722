package nvml

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// calls runs library calls that may hang in the driver. The timeout ends the wait, not the call. While a call
// hangs, no second call of the same name starts, and the next wait for that name gets the answer of the hanging
// call. The type is not safe for concurrent use.
type calls struct {
	timeout time.Duration // per wait
	pending map[string]*pending
}

// pending is a started call with an unused answer.
type pending struct {
	done   chan struct{}
	answer any // valid once done is closed
}

func (p *pending) returned() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait waits for the answer until the timeout or until the context is done, and reports whether the call has
// returned.
func (p *pending) wait(ctx context.Context, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	return p.returned()
}

// anyHanging reports whether one of the named calls hangs, or any call if no name is given.
func (c calls) anyHanging(names ...string) bool {
	for name, p := range c.pending {
		if !p.returned() && (len(names) == 0 || slices.Contains(names, name)) {
			return true
		}
	}
	return false
}

// isOverdue reports whether the named call has returned, but only after its caller had stopped waiting.
func (c calls) isOverdue(name string) bool {
	p := c.pending[name]
	return p != nil && p.returned()
}

// startCall starts a call. If a call of the same name is pending, it returns the pending call instead.
func startCall[T any](c calls, name string, f func() T) *pending {
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

// takeAnswer returns and removes the answer of a call that has returned. The next call of the same name starts anew.
func takeAnswer[T any](c calls, name string) (answer T, ok bool) {
	p := c.pending[name]
	if p == nil || !p.returned() {
		return answer, false
	}
	delete(c.pending, name)
	answer, ok = p.answer.(T)
	return answer, ok
}

// renew makes a call. If the call does not return in time, renew returns the late answer of the previous one.
func renew[T any](ctx context.Context, c calls, name string, f func() T) (answer T, ok bool) {
	late, ok := takeAnswer[T](c, name)
	if now, ok := call(ctx, c, name, f); ok {
		return now, true
	}
	return late, ok
}

// call makes a call, or continues to wait for a pending one, until the timeout or until the context is done.
func call[T any](ctx context.Context, c calls, name string, f func() T) (answer T, ok bool) {
	startCall(c, name, f).wait(ctx, c.timeout)
	return takeAnswer[T](c, name)
}

// ErrSlow reports that NVML did not answer in time. It may still answer.
var ErrSlow = errors.New("NVML does not answer")

// Bounded runs library calls for concurrent callers, and bounds each wait. Callers that use the same name share a
// call.
type Bounded struct {
	mu    sync.Mutex // guards calls
	calls calls
}

// NewBounded returns a Bounded whose waits end after the timeout.
func NewBounded(timeout time.Duration) *Bounded {
	return &Bounded{calls: calls{timeout: timeout, pending: make(map[string]*pending)}}
}

// Call makes a call that only reads, or continues to wait for a pending one. If the call does not return in time,
// Call returns the late answer of the previous call, or ErrSlow. It returns ErrSlow early if the context is done.
func Call[T any](ctx context.Context, b *Bounded, name string, f func() T) (T, error) {
	b.mu.Lock()
	late, isLate := takeAnswer[T](b.calls, name)
	p := startCall(b.calls, name, f)
	b.mu.Unlock()
	if answer, ok := await[T](ctx, b, name, p); ok {
		return answer, nil
	}
	if isLate {
		return late, nil
	}
	return late, ErrSlow
}

// Do makes a call that changes something. It first waits for a pending call of the same name, and drops that call's
// answer: the later change takes effect last. It returns ErrSlow early if the context is done.
func Do(ctx context.Context, b *Bounded, name string, f func() error) error {
	type outcome struct{ err error }
	for {
		b.mu.Lock()
		earlier := b.calls.pending[name]
		p := startCall(b.calls, name, func() outcome { return outcome{f()} })
		b.mu.Unlock()
		done, ok := await[outcome](ctx, b, name, p)
		if !ok {
			return ErrSlow
		}
		if p != earlier {
			return done.err
		}
	}
}

// await waits for call p, and removes it from the pending calls once it has returned.
func await[T any](ctx context.Context, b *Bounded, name string, p *pending) (answer T, ok bool) {
	if !p.wait(ctx, b.calls.timeout) {
		return answer, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls.pending[name] == p {
		delete(b.calls.pending, name)
	}
	answer, ok = p.answer.(T)
	return answer, ok
}
