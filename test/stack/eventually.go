package stack

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Eventually waits until a condition holds, for as long as patience. The error has what the condition
// last said.
func Eventually(ctx context.Context, patience time.Duration, what string, condition func(context.Context) (ok bool, now string)) error {
	var now string
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (ok bool, err error) {
		ok, now = condition(ctx)
		return ok, nil
	})
	if err != nil {
		return fmt.Errorf("waited %s for: %s; now: %s", patience, what, now)
	}
	return nil
}
