package extender

import (
	"sync"
	"time"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// SecondLook is how long Filter waits for news about nodes when a pod fits on
// none of them.
const SecondLook = 100 * time.Millisecond

// kube-scheduler looks at one pod at a time: the rest of them must not wait for
// those that fit nowhere. So the waits take a tenth of the time at most, but for
// some at once: the pods of a burst are deleted one soon after the other.
const (
	looksShare  = 10
	looksAtOnce = 10
)

// looks counts the waits.
type looks struct {
	mu    sync.Mutex
	spent time.Duration // on waits, and not made up for yet
	last  time.Time
}

// allow reports whether there is time for one more, and counts it.
func (l *looks) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spent = max(0, l.spent-now.Sub(l.last)/looksShare)
	l.last = now
	if l.spent > (looksAtOnce-1)*SecondLook {
		return false
	}
	l.spent += SecondLook
	return true
}

func fitsSomewhere(result *extenderv1.ExtenderFilterResult) bool {
	return result.NodeNames != nil && len(*result.NodeNames) > 0 || result.Nodes != nil && len(result.Nodes.Items) > 0
}
