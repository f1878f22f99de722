package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// How much of the journal is shown around a violation.
const (
	timeBefore = 30 * time.Second
	timeAfter  = 5 * time.Second
)

// journal is what has happened, in order. Violations are read against it.
type journal struct {
	mu      sync.Mutex
	entries []entry
}

type entry struct {
	at   time.Time
	pod  string // namespace/name; empty for what concerns all
	text string
}

// add notes something that concerns a pod, or all if there is none.
func (j *journal) add(pod, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry{time.Now(), pod, fmt.Sprintf(format, args...)})
}

// around returns what has happened at about that time to these pods and to all,
// a line each.
func (j *journal) around(at time.Time, pods []string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	for _, e := range j.entries {
		since := e.at.Sub(at)
		if since < -timeBefore || since > timeAfter || e.pod != "" && !slices.Contains(pods, e.pod) {
			continue
		}
		fmt.Fprintf(&b, "  %+6.1f s  %s\n", since.Seconds(), strings.TrimSpace(e.pod+" "+e.text))
	}
	return b.String()
}
