package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Findings is what the watcher has found.
type Findings struct {
	Violations []string // each with the time around it, a line each
	Overlaps   int      // of pods deleted by force with the next
	samples
}

func (f Findings) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "looked at kubelets %d, processes %d, pods %d times; all parts were up for %s; the longest that a correction took: %s\n",
		f.kubelets, f.processes, f.pods, f.up.Round(time.Second), f.longest.Round(100*time.Millisecond))
	fmt.Fprintf(&b, "pods deleted by force met their successors %d times (no violation)\n", f.Overlaps)
	fmt.Fprintf(&b, "kube-scheduler counted pods that were gone, and was started again, %d times (no violation)\n", f.miscounts)
	for _, v := range f.Violations {
		fmt.Fprintf(&b, "violation: %s\n", strings.TrimSpace(v))
	}
	return b.String()
}

// refusals is how many pods kubelets did not take, by reason.
type refusals map[string]int

func (r refusals) String() string {
	var b strings.Builder
	for _, why := range slices.Sorted(maps.Keys(r)) {
		fmt.Fprintf(&b, "a kubelet refused %d pods: %s\n", r[why], why)
	}
	return b.String()
}

// Report is how a run has gone.
type Report struct {
	Seed    uint64
	Pods    int // that ran
	Created int
	Faults  int
	Kinds   string // of faults, with their numbers
	Refused refusals
	Leaked  int64 // units
	Idle    int   // pods that fit and were late to run after the last fault

	Duration  time.Duration
	Corrected int      // assignments that a device plugin has changed
	Forged    int      // writes of the tenant that were refused
	Harmed    []string // those that were not
	Findings
}

// exchangeSurely is how long a run has to last for some pods to be exchanged: faults thwart most
// of the tries.
const exchangeSurely = 8 * time.Minute

// OK says whether all promises held, and were put to the test: that some writes were refused,
// and some pods exchanged.
func (r Report) OK() bool {
	exchanged := r.Corrected > 0 || r.Duration < exchangeSurely
	return len(r.Violations) == 0 && r.Leaked == 0 && len(r.Harmed) == 0 && r.Forged > 0 && exchanged
}

func (r Report) String() string {
	var harm strings.Builder
	for _, h := range r.Harmed {
		fmt.Fprintf(&harm, "the tenant was let: %s\n", h)
	}
	return fmt.Sprintf("seed %d; %d pods created, %d ran\nfaults: %s\nthe tenant was refused %d times\n%s%v%v",
		r.Seed, r.Created, r.Pods, r.Kinds, r.Forged, harm.String(), r.Refused, r.Findings) +
		fmt.Sprintf("result: chaos pods=%d faults=%d violations=%d leaked=%d harmed=%d corrections=%d longest-wait=%.1fs waiting-though-fits=%d",
			r.Pods, r.Faults, len(r.Violations), r.Leaked, len(r.Harmed), r.Corrected, r.wait.Seconds(), r.Idle)
}

// FailoverReport is how a failover has gone.
type FailoverReport struct {
	Seed       uint64
	Pods       int
	Before     int           // bound when the leader was killed
	Frozen     int           // bound when the next one was frozen
	NextBind   time.Duration // from the kill to the first bind of the next leader
	AllBound   time.Duration // from the first creation
	AllRunning time.Duration // the same
	Doubled    int           // GPUs and units given twice
	Stuck      int           // pods that do not run
	Leaked     int64         // units
	Refused    refusals
	Findings
}

// OK says whether all promises held.
func (r FailoverReport) OK() bool {
	return r.Doubled == 0 && r.Stuck == 0 && len(r.Violations) == 0 && r.Leaked == 0
}

func (r FailoverReport) String() string {
	return fmt.Sprintf("seed %d; the leader was killed when %d of %d pods were bound, and the next one was frozen when %d were, until another had bound one; all were bound %s after the first was made, and all ran after %s\n%v%v",
		r.Seed, r.Before, r.Pods, r.Frozen, r.AllBound.Round(100*time.Millisecond), r.AllRunning.Round(100*time.Millisecond), r.Refused, r.Findings) +
		fmt.Sprintf("result: failover pods=%d doubled=%d stuck=%d next-bind=%.1fs", r.Pods, r.Doubled, r.Stuck, r.NextBind.Seconds())
}
