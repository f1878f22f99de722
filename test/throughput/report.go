package throughput

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The goals. Those of ratios are of a kube-scheduler with the extender to one
// without.
const (
	leastRate   = 0.95
	mostWaiting = 1.2
	// mostRefused is how many Binds the extender may refuse, in percent of the pods:
	// each is a second turn of its pod, after a back-off of a second or more.
	mostRefused = 0.5
	// mostDelay is how much longer than without the extender the pod may wait that
	// waits longest, in seconds: as long as kube-scheduler's longest back-off. What
	// waits for longer was refused again and again, or waits for an event that did not
	// come.
	mostDelay = 10
	// mostFlooded is how much more processor time a pod may take under a flood of scrapes,
	// and mostMemory how many MiB the extender's memory.
	mostFlooded = 1.3
	mostMemory  = 200
)

// Round is one measurement.
type Round struct {
	Pods       int                // made at once
	Processors map[string]float64 // milliseconds on a processor, per pod made at once, by process
	Rate       float64            // pods bound per second, of those made at once
	BurstP50   float64            // seconds from a pod's creation to its binding
	BurstP99   float64            // the same
	Longest    float64            // the same of the pod that waited longest
	Refused    map[string]int     // Binds of the pods made at once, by reason
	StreamP50  float64            // seconds from creation to binding in the stream
	StreamP99  float64            // the same
	MemoryMiB  float64            // of the extender, at its peak; 0: there is none
}

func newRound(burst, stream figures, before, after reading) Round {
	r := Round{
		Pods:       len(burst.waiting),
		Processors: make(map[string]float64),
		Rate:       float64(len(burst.waiting)) / burst.took.Seconds(),
		BurstP50:   quantile(burst.waiting, 0.5), BurstP99: quantile(burst.waiting, 0.99), Longest: quantile(burst.waiting, 1),
		StreamP50: quantile(stream.waiting, 0.5), StreamP99: quantile(stream.waiting, 0.99),
	}
	for name := range after.processors {
		spent := after.processors[name] - before.processors[name]
		r.Processors[name] = spent.Seconds() * 1000 / float64(len(burst.waiting))
	}
	if after.refused != nil {
		r.Refused = make(map[string]int)
	}
	for reason := range after.refused {
		if n := after.refused[reason] - before.refused[reason]; n > 0 {
			r.Refused[reason] = n
		}
	}
	return r
}

// processor returns the milliseconds on a processor per pod, of all processes.
func (r Round) processor() float64 { return sum(r.Processors) }

// refused returns the Binds that were refused, in percent of the pods.
func (r Round) refused() float64 { return 100 * float64(sum(r.Refused)) / float64(r.Pods) }

func sum[V int | float64](values map[string]V) (out V) {
	for _, v := range values {
		out += v
	}
	return out
}

// quantile returns the time in seconds that the part q of all is not above.
func quantile(all []time.Duration, q float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[int(q*float64(len(sorted)-1))].Seconds()
}

func (r Round) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%5.2f ms of processor time per pod:", r.processor())
	for _, name := range slices.Sorted(maps.Keys(r.Processors)) {
		fmt.Fprintf(&b, " %s %.2f", name, r.Processors[name])
	}
	fmt.Fprintf(&b, "; %.0f pods/s; waiting p50 %.2f s, p99 %.2f s, longest %.2f s; in the stream p50 %.3f s, p99 %.3f s",
		r.Rate, r.BurstP50, r.BurstP99, r.Longest, r.StreamP50, r.StreamP99)
	if r.MemoryMiB != 0 {
		fmt.Fprintf(&b, "; the extender's memory at most %.0f MiB", r.MemoryMiB)
	}
	if r.Refused != nil {
		fmt.Fprintf(&b, "; Binds refused: %d", sum(r.Refused))
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Refused)) {
		fmt.Fprintf(&b, ", %s %d", reason, r.Refused[reason])
	}
	return b.String()
}

// Comparison is what was measured with one size of the fleet.
type Comparison struct {
	Nodes  int
	Rounds map[string][]Round // by side
}

// Report is what was measured.
type Report struct {
	PercentageOfNodesToScore map[string]string // by side
	Sizes                    []Comparison
}

// Result is one figure of all rounds.
type Result struct {
	Name           string
	Low, Mid, High float64 // of the rounds
	Goal           float64 // 0: none
	Met            bool
	Idle           float64 // the same of an extender that decides nothing; 0: not measured
}

// Results returns the figures that tell, those that other work on the machine
// changes least first.
func (r Report) Results() []Result {
	var out []Result
	for _, c := range r.Sizes {
		if len(c.Rounds[with]) == 0 {
			continue
		}
		if len(c.Rounds[without]) > 0 {
			out = append(out, c.ratio("processor-time", Round.processor, 0, false))
		}
		if len(c.Rounds[flooded]) > 0 {
			out = append(out, c.flooded()...)
		}
		out = append(out, c.refused(), c.longest())
		if len(c.Rounds[without]) > 0 {
			out = append(out,
				c.ratio("throughput", func(r Round) float64 { return r.Rate }, leastRate, true),
				c.ratio("burst-p99", func(r Round) float64 { return r.BurstP99 }, mostWaiting, false),
				c.ratio("stream-p99", func(r Round) float64 { return r.StreamP99 }, mostWaiting, false))
		}
	}
	return out
}

func (c Comparison) name(of string) string { return fmt.Sprintf("%s-%d-nodes", of, c.Nodes) }

// ratio compares a figure of the extender's side with that without one.
func (c Comparison) ratio(name string, of func(Round) float64, goal float64, larger bool) Result {
	ratios := quotients(c.Rounds[with], c.Rounds[without], of)
	result := Result{Name: c.name(name), Goal: goal, Low: ratios[0], Mid: median(ratios), High: ratios[len(ratios)-1]}
	result.Met = goal == 0 || result.Mid <= goal
	if larger {
		result.Met = result.Mid >= goal
	}
	if len(c.Rounds[idle]) > 0 {
		result.Idle = median(quotients(c.Rounds[idle], c.Rounds[without], of))
	}
	return result
}

// flooded compares the extender under a flood with itself.
func (c Comparison) flooded() []Result {
	ratios := quotients(c.Rounds[flooded], c.Rounds[with], Round.processor)
	spent := Result{Name: c.name("flooded-processor-time"), Goal: mostFlooded, Low: ratios[0], Mid: median(ratios), High: ratios[len(ratios)-1]}
	spent.Met = spent.Mid <= spent.Goal
	all := each(c.Rounds[flooded], func(r Round) float64 { return r.MemoryMiB })
	memory := Result{Name: c.name("flooded-memory-mib"), Goal: mostMemory, Low: all[0], Mid: all[len(all)-1], High: all[len(all)-1]}
	memory.Met = memory.Mid <= memory.Goal
	return []Result{spent, memory}
}

// refused is about the Binds of all rounds together.
func (c Comparison) refused() Result {
	all := each(c.Rounds[with], Round.refused)
	result := Result{Name: c.name("refused-binds-percent"), Goal: mostRefused, Low: all[0], High: all[len(all)-1]}
	for _, one := range all { // rounds have as many pods each
		result.Mid += one / float64(len(all))
	}
	result.Met = result.Mid <= result.Goal
	return result
}

// longest is about the pod that waited longest in any round.
func (c Comparison) longest() Result {
	of := func(side string) []float64 { return each(c.Rounds[side], func(r Round) float64 { return r.Longest }) }
	all := of(with)
	result := Result{Name: c.name("longest-wait"), Low: all[0], Mid: all[len(all)-1], High: all[len(all)-1], Met: true}
	if all := of(without); len(all) > 0 {
		result.Goal = all[len(all)-1] + mostDelay
		result.Met = result.Mid <= result.Goal
	}
	if all := of(idle); len(all) > 0 {
		result.Idle = all[len(all)-1]
	}
	return result
}

// each returns a figure of each round, sorted.
func each(rounds []Round, of func(Round) float64) (out []float64) {
	for _, r := range rounds {
		out = append(out, of(r))
	}
	slices.Sort(out)
	return out
}

// quotients divides round by round, and sorts what comes out.
func quotients(a, b []Round, of func(Round) float64) []float64 {
	var out []float64
	for i := range a {
		out = append(out, of(a[i])/of(b[i]))
	}
	slices.Sort(out)
	return out
}

// median returns the middle of sorted numbers.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// OK reports whether all goals were met.
func (r Report) OK() bool {
	return !slices.ContainsFunc(r.Results(), func(one Result) bool { return !one.Met })
}

func (r Report) String() string {
	var b strings.Builder
	for _, side := range slices.Sorted(maps.Keys(r.PercentageOfNodesToScore)) {
		fmt.Fprintf(&b, "percentageOfNodesToScore %s: %s\n", side, r.PercentageOfNodesToScore[side])
	}
	for _, c := range r.Sizes {
		for _, side := range Sides() {
			for _, one := range c.Rounds[side] {
				fmt.Fprintf(&b, "%5d nodes, %-7s %v\n", c.Nodes, side, one)
			}
		}
	}
	for _, one := range r.Results() {
		fmt.Fprintln(&b, one)
	}
	return b.String()
}

func (r Result) String() string {
	text := fmt.Sprintf("result: %s %.2f", r.Name, r.Mid)
	if r.Goal != 0 {
		verdict := "missed"
		if r.Met {
			verdict = "met"
		}
		text += fmt.Sprintf(" goal %.2f %s", r.Goal, verdict)
	}
	text += fmt.Sprintf(" (rounds: %.2f to %.2f", r.Low, r.High)
	if r.Idle != 0 {
		text += fmt.Sprintf("; an extender that decides nothing: %.2f", r.Idle)
	}
	return text + ")"
}
