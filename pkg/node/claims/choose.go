package claims

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// quiet is how long nothing of a kind was on a node that is to change: a scheduler that has not
// heard of that yet may still send some.
const quiet = 10 * time.Second

// InShares reports whether a node's GPUs are offered to claims in shares: as the prepared claims have it. Without one
// it is as wanted.
func InShares(prepared map[types.UID]Claim, wanted bool) bool {
	for _, c := range prepared {
		return c.inShares()
	}
	return wanted
}

// Choose says whether a node is served by claims, and why. Its label counts once nothing is left
// that was handed out the other way: the pods that hold the extended resource, or prepared claims.
// Until then both could give the same memory.
func Choose(labelled bool, prepared int, holders []string) (byClaims bool, why string) {
	switch {
	case labelled && len(holders) > 0:
		return false, fmt.Sprintf("the node is to hand out claims once %d pods with the extended resource have ended, %s among them", len(holders), holders[0])
	case !labelled && prepared > 0:
		return true, fmt.Sprintf("the node is to hand out the extended resource once %d prepared claims are given back", prepared)
	case labelled:
		return true, "the node's label says so"
	default:
		return false, "no label of the node says otherwise"
	}
}

// Left returns once the label of a node asks for another API than the one that is served, and nothing that
// was handed out was left for a while. It is false where the context was done before.
// Both functions have channels that are closed when they would tell something else.
func Left(ctx context.Context, other func() (bool, <-chan struct{}), left func() (int, <-chan struct{})) bool {
	for {
		asked, relabelled := other()
		n, changed := left()
		var over <-chan time.Time
		if asked && n == 0 {
			over = time.After(quiet)
		}
		select {
		case <-ctx.Done():
			return false
		case <-relabelled:
		case <-changed:
		case <-over:
			return true
		}
	}
}
