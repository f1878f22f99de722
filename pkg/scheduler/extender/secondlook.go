package extender

import (
	"sync"
	"time"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// SecondLook is how long Filter waits for a change of the nodes when a pod fits none of them.
const SecondLook = 100 * time.Millisecond

// kube-scheduler tries one pod at a time, so pods that fit nowhere must not delay the others. The waits may
// take 1/looksShare of the time, but looksAtOnce waits may follow each other at once: the pods of a burst are
// deleted shortly after each other.
const (
	looksShare  = 10
	looksAtOnce = 10
)

// looks limits the time that is spent on waits.
type looks struct {
	mu    sync.Mutex
	spent time.Duration // on waits; it decays by 1/looksShare of the elapsed time
	last  time.Time
}

// allow reports whether one more wait is allowed, and counts it.
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
