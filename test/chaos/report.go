package chaos

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Report is how a run has gone.
type Report struct {
	Seed       uint64
	Pods       int // that ran
	Created    int
	Faults     int
	Kinds      string // of faults, with their numbers
	Violations []string
	Leaked     int64
	Refused    map[string]int // pods that a kubelet did not take, by reason
	Overlaps   int            // of pods deleted by force with the next
	Up         time.Duration  // how long all parts were up
	Longest    time.Duration  // that the plugin had something to mend, while all parts were up
	Samples    map[string]int
}

// OK says whether all promises held.
func (r Report) OK() bool { return len(r.Violations) == 0 && r.Leaked == 0 }

func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d; %d pods created, %d ran\n", r.Seed, r.Created, r.Pods)
	fmt.Fprintf(&b, "faults: %s; all parts were up for %s\n", r.Kinds, r.Up.Round(time.Second))
	fmt.Fprintf(&b, "looked at kubelets %d, processes %d, pods %d times; the longest that a correction took: %s\n", r.Samples["kubelets"], r.Samples["processes"], r.Samples["pods"], r.Longest.Round(100*time.Millisecond))
	for _, why := range slices.Sorted(maps.Keys(r.Refused)) {
		fmt.Fprintf(&b, "a kubelet refused %d pods: %s\n", r.Refused[why], why)
	}
	fmt.Fprintf(&b, "pods deleted by force met their successors %d times (no violation)\n", r.Overlaps)
	for _, v := range r.Violations {
		fmt.Fprintln(&b, "violation:", v)
	}
	fmt.Fprintf(&b, "result: chaos pods=%d faults=%d violations=%d leaked=%d", r.Pods, r.Faults, len(r.Violations), r.Leaked)
	return b.String()
}

// fill takes over what the watcher has collected.
func (r *Report) fill(w *Watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.violations {
		r.Violations = append(r.Violations, f.String())
	}
	r.Overlaps, r.Up, r.Longest, r.Samples = len(w.overlaps), w.up, w.longest, maps.Clone(w.samples)
}

// stamped puts the time since the start before each line. It may be used by
// many at once, as long as each writes whole lines.
type stamped struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
}

func stamp(out io.Writer) io.Writer { return &stamped{out: out, start: time.Now()} }

func (s *stamped) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Fprintf(s.out, "[%4.0fs] %s", time.Since(s.start).Seconds(), line); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}
