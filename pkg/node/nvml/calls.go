package nvml

import (
	"context"
	"slices"
	"time"
)

// calls are calls of the library that may hang in the driver. One that does is left behind, and
// its like is not made again until it returns. They are for one goroutine.
type calls struct {
	timeout time.Duration              // of one that is waited for
	hanging map[string]<-chan struct{} // calls that were not waited for to their end
}

// anyHanging reports whether one of these calls hangs, of all calls when none is named.
func (c calls) anyHanging(names ...string) bool {
	for name, done := range c.hanging {
		select {
		case <-done:
			delete(c.hanging, name)
		default:
			if len(names) == 0 || slices.Contains(names, name) {
				return true
			}
		}
	}
	return false
}

// begin starts a call that may hang in the driver. It returns nil, and does
// nothing, while an earlier one of the same name has not returned.
func begin[T any](c calls, name string, f func() T) <-chan T {
	if done, ok := c.hanging[name]; ok {
		select {
		case <-done:
		default:
			return nil
		}
	}
	answer := make(chan T, 1)
	done := make(chan struct{})
	c.hanging[name] = done
	go func() {
		v := f()
		close(done) // first: who has the answer may call again
		answer <- v
	}()
	return answer
}

// call makes one and waits for it until the context or the time is over.
func call[T any](ctx context.Context, c calls, name string, f func() T) (answer T, ok bool) {
	pending := begin(c, name, f)
	if pending == nil {
		return answer, false
	}
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	select {
	case answer = <-pending:
		return answer, true
	case <-timer.C:
	case <-ctx.Done():
	}
	return answer, false
}
