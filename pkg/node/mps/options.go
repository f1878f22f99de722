package mps

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// daemonOptions lists the options to start a daemon with, in order of preference. The manual pages of some
// drivers do not list -multiuser-server. Without it, the daemon serves the containers of one user at a time:
// containers of a second user wait until the clients of the first have ended.
var daemonOptions = [...][]string{{"-f", "-multiuser-server"}, {"-f"}}

// maxEarlyEnds is the number of consecutive early ends after which the supervisor drops -multiuser-server. A daemon
// ends early if it ends before it accepts its settings. It can also do so for a temporary reason, such as a driver
// that is still loading.
const maxEarlyEnds = 3

// trial finds the options that the daemon accepts. The documentation differs between drivers, and the daemon cannot
// list its options. A daemon that ends early may have refused its options.
type trial struct {
	next     int                        // index into daemonOptions
	early    int                        // consecutive early ends of daemons with the first options
	answered bool                       // the last daemon accepted its settings
	failures [len(daemonOptions)]string // last error by options, since a daemon last accepted its settings
}

// options returns the options for the next daemon.
func (t *trial) options() []string {
	t.answered = false
	return daemonOptions[t.next]
}

// singleUser reports whether the last daemon serves the containers of one user at a time.
func (t *trial) singleUser() bool { return t.next != 0 }

// succeed records that the daemon accepted its settings. Its options stay in use until it ends.
func (t *trial) succeed() {
	t.answered, t.early = true, 0
	t.failures = [len(daemonOptions)]string{}
}

// fail returns the reason why a daemon is not healthy, with all options that failed, and selects the options of the
// next daemon. If the daemon had accepted its settings, the next one starts with the first options again: no
// clients depend on the options, because they have ended with the daemon.
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

// maxBackoff is the longest pause before a restart. A daemon that runs at least that long resets the pause.
const maxBackoff = time.Minute

// backoff is the pause between two daemons. It doubles while they end early.
type backoff struct{ first, next time.Duration }

// nextDelay returns the pause after a daemon that ran for the given time.
func (b *backoff) nextDelay(lived time.Duration) time.Duration {
	if b.next == 0 || lived >= maxBackoff {
		b.next = b.first
	}
	pause := b.next
	b.next = min(2*b.next, max(b.first, maxBackoff))
	return pause
}
