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

// A trial finds the options that the daemon accepts. Documents differ between drivers, and the daemon has no option that
// lists its options: one that ends before it answers a question may have refused them.
type trial struct {
	next     int                        // of daemonOptions
	answered bool                       // the daemon that was started last took its settings
	failures [len(daemonOptions)]string // by options, since a daemon last answered
}

// options returns the options for the next daemon.
func (t *trial) options() []string {
	t.answered = false
	return daemonOptions[t.next]
}

// succeed keeps the options of a daemon that took its settings.
func (t *trial) succeed() {
	t.answered = true
	t.failures = [len(daemonOptions)]string{}
}

// fail returns the reason for people why a daemon is not healthy, which lists all options that failed, and has the next
// daemon started with others.
func (t *trial) fail(err error) string {
	if t.answered || !errors.Is(err, errExited) {
		return err.Error()
	}
	t.failures[t.next] = fmt.Sprintf("with %s %v", strings.Join(daemonOptions[t.next], " "), err)
	t.next = (t.next + 1) % len(daemonOptions)
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
