// Package operation numbers the calls that a process answers. All log lines of one call have the same number,
// in the field "operation". Numbers begin anew with each process.
package operation

import (
	"context"
	"sync/atomic"

	"go.uber.org/zap"
)

type key struct{}

var lastNumber atomic.Uint64

// Begin returns the context of a new call.
func Begin(ctx context.Context) context.Context {
	return context.WithValue(ctx, key{}, lastNumber.Add(1))
}

// Log returns the logger with the number of the context's call. Without a call it returns the logger.
func Log(ctx context.Context, log *zap.Logger) *zap.Logger {
	number, ok := ctx.Value(key{}).(uint64)
	if !ok {
		return log
	}
	return log.With(zap.Uint64("operation", number))
}
