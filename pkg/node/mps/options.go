package mps

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// daemonOptions are the options to start a daemon with, the best first. The manual pages of some drivers do not list
// -multiuser-server. Without it the daemon serves the containers of one user at a time: containers of a second
// user wait until the clients of the first have ended.
var daemonOptions = [...][]string{{"-f", "-multiuser-server"}, {"-f"}}

// maxEarlyEnds is how many daemons in a row must end early before the supervisor drops -multiuser-server. A daemon may also
// end early for a passing reason, such as a driver that is still loading.
const maxEarlyEnds = 3

// A trial finds the options that the daemon accepts. Documents differ between drivers, and the daemon has no option that
// lists its options: one that ends before it answers a question may have refused them.
type trial struct {
	next     int                        // of daemonOptions
	early    int                        // daemons in a row that ended early with the best options
	answered bool                       // the daemon that was started last took its settings
	failures [len(daemonOptions)]string // by options, since a daemon last answered
}

// options returns the options for the next daemon.
func (t *trial) options() []string {
	t.answered = false
	return daemonOptions[t.next]
}

// singleUser reports whether the daemon that was started last serves the containers of one user at a time.
func (t *trial) singleUser() bool { return t.next != 0 }

// succeed keeps the options of a daemon that took its settings until that daemon ends.
func (t *trial) succeed() {
	t.answered, t.early = true, 0
	t.failures = [len(daemonOptions)]string{}
}

// fail returns the reason for people why a daemon is not healthy, which lists all options that failed, and chooses the
// options of the next daemon. After a daemon that took its settings these are the best ones again: its clients have ended
// with it.
func (t *trial) fail(err error) string {
	if t.answered {
		t.next = 0
		return err.Error()
	}
	if !errors.Is(err, errExited) {
		return err.Error()
	}
	t.failures[t.next] = fmt.Sprintf("with %s %v", strings.Join(daemonOptions[t.next], " "), err)
	if t.next == 0 {
		t.early++
	}
	if t.next > 0 || t.early == maxEarlyEnds {
		t.next, t.early = (t.next+1)%len(daemonOptions), 0
	}
	return strings.Join(slices.DeleteFunc(slices.Clone(t.failures[:]), func(s string) bool { return s == "" }), "; ")
}

// maxBackoff is the longest pause before a daemon is started again, and how long one must run for the pause to be short again.
const maxBackoff = time.Minute

// A backoff is the pause between two daemons. It doubles while they end soon.
type backoff struct{ first, next time.Duration }

// after returns the pause after a daemon that ran for that long.
func (b *backoff) after(lived time.Duration) time.Duration {
	if b.next == 0 || lived >= maxBackoff {
		b.next = b.first
	}
	pause := b.next
	b.next = min(2*b.next, max(b.first, maxBackoff))
	return pause
}
