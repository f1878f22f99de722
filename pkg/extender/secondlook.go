package extender

import (
	"sync"
	"time"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// SecondLook is how long Filter waits for news about nodes when a pod fits on
// none of them.
const SecondLook = 100 * time.Millisecond

// looksApart is the time from one such wait to the next. kube-scheduler looks at
// one pod at a time: the rest of them must not wait for those that fit nowhere.
const looksApart = time.Second

// looks counts the waits.
type looks struct {
	mu   sync.Mutex
	last time.Time
}

// allow reports whether it is time for one more, and counts it.
func (l *looks) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.last) < looksApart {
		return false
	}
	l.last = now
	return true
}

func fitsSomewhere(result *extenderv1.ExtenderFilterResult) bool {
	return result.NodeNames != nil && len(*result.NodeNames) > 0 || result.Nodes != nil && len(result.Nodes.Items) > 0
}
