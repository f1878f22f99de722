package extender

import (
	"sync"
	"time"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// recheckTimeout bounds the time for which Filter waits for a change of the nodes when a pod fits none of
// them.
const recheckTimeout = 100 * time.Millisecond

// kube-scheduler tries one pod at a time, so pods that fit nowhere must not delay the others. The waits may
// take 1/recheckShare of the time on average. recheckBurst waits may follow each other immediately, because
// pods are often deleted in bursts.
const (
	recheckShare = 10
	recheckBurst = 10
)

// recheckBudget limits the time that is spent on waits.
type recheckBudget struct {
	mu    sync.Mutex
	spent time.Duration // on waits; it decays by 1/recheckShare of the elapsed time
	last  time.Time
}

// allow reports whether one more wait is allowed, and if so charges it to the budget.
func (b *recheckBudget) allow(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent = max(0, b.spent-now.Sub(b.last)/recheckShare)
	b.last = now
	if b.spent > (recheckBurst-1)*recheckTimeout {
		return false
	}
	b.spent += recheckTimeout
	return true
}

func hasFeasible(result *extenderv1.ExtenderFilterResult) bool {
	return result.NodeNames != nil && len(*result.NodeNames) > 0 || result.Nodes != nil && len(result.Nodes.Items) > 0
}
