package extender

import (
	"sync"
	"time"
)

// Silence is how long kube-scheduler must have asked this extender nothing for
// another to have been asked meanwhile. That takes longer: one that dies keeps the
// Lease for fifteen seconds, and one that loses it or gives it up ends and has to
// wait until the next has led and lost it.
const Silence = time.Second

// turn is the time in which kube-scheduler asks this extender and no other.
type turn struct {
	mu     sync.Mutex
	asked  time.Time // last
	caught *sync.Map // nodes of which the cache has all that was bound before the turn
}

// ask counts a question. After a silence a turn begins.
func (t *turn) ask(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.asked) > Silence {
		t.caught = new(sync.Map)
	}
	t.asked = now
}

// caughtUp returns the nodes by name of which the cache has all that was bound
// before this turn.
func (t *turn) caughtUp() *sync.Map {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.caught
}
