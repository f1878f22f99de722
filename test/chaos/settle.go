package chaos

import (
	"context"
	"time"
)

const (
	// stillTime is how long nothing may change before it is said that nothing will.
	stillTime = 3 * time.Minute
	// longTime is how long there may be changes.
	longTime = 20 * time.Minute
)

// settle looks every second until look says nothing any more. It gives up when
// look says the same for stillTime, or anything for longTime, and returns what it
// said last. How long it takes to get there is the machine's affair.
func settle(ctx context.Context, look func(context.Context) string) (left string, err error) {
	start := time.Now()
	changed := start
	for ; ctx.Err() == nil; sleep(ctx, time.Second) {
		now := look(ctx)
		if now != left {
			left, changed = now, time.Now()
		}
		if left == "" || time.Since(changed) > stillTime || time.Since(start) > longTime {
			return left, nil
		}
	}
	return left, context.Cause(ctx)
}
