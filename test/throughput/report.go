package throughput

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The goals. Those of ratios are of a side to plain kube-scheduler.
const (
	leastRate   = 0.95
	mostWaiting = 1.2
	// mostTime is how much processor time a pod may take with the plugin, of all processes,
	// in fleets of up to manyNodes, and mostTimeOfMany in larger ones.
	mostTime       = 1.06
	mostTimeOfMany = 1.10
	manyNodes      = 1000
	// mostTimeSampled is the same of the extender, where kube-scheduler looks at as many
	// nodes as without it.
	mostTimeSampled = 1.30
	// mostResident is how much more memory kube-scheduler may take with the plugin in it.
	mostResident = 1.5
	// mostRefused is how many Binds gpumem may refuse, in percent of the pods:
	// each is a second turn of its pod, after a back-off of a second or more.
	mostRefused = 0.5
	// mostDelay is how much longer than with plain kube-scheduler the pod may wait that
	// waits longest, in seconds: as long as kube-scheduler's longest back-off. What
	// waits for longer was refused again and again, or waits for an event that did not
	// come.
	mostDelay = 10
	// mostFlooded is how much more processor time a pod may take under a flood of scrapes,
	// and mostMemory how many MiB the extender's memory.
	mostFlooded = 1.3
	mostMemory  = 200
)

// leastRequests is how many requests of a kind per pod are worth a word.
const leastRequests = 0.01

// Round is one measurement.
type Round struct {
	Pods       int                // made at once
	Processors map[string]float64 // milliseconds on a processor, per pod made at once, by process
	Rate       float64            // pods bound per second, of those made at once
	BurstP50   float64            // seconds from a pod's creation to its binding
	BurstP99   float64            // the same
	Longest    float64            // the same of the pod that waited longest
	Refused    map[string]int     // Binds of the pods made at once, by reason
	Requests   map[string]float64 // that the API server answered, per pod made at once and deleted, by verb and resource
	StreamP50  float64            // seconds from creation to binding in the stream
	StreamP99  float64            // the same
	MemoryMiB  map[string]float64 // at its peak, by process
}

func newRound(burst, stream figures, before, after reading) Round {
	r := Round{
		Pods:       len(burst.waiting),
		Processors: make(map[string]float64), MemoryMiB: make(map[string]float64), Requests: make(map[string]float64),
		Rate:     float64(len(burst.waiting)) / burst.took.Seconds(),
		BurstP50: quantile(burst.waiting, 0.5), BurstP99: quantile(burst.waiting, 0.99), Longest: quantile(burst.waiting, 1),
		StreamP50: quantile(stream.waiting, 0.5), StreamP99: quantile(stream.waiting, 0.99),
	}
	for name := range after.processors {
		spent := after.processors[name] - before.processors[name]
		r.Processors[name] = spent.Seconds() * 1000 / float64(len(burst.waiting))
	}
	for name := range after.requests {
		if n := float64(after.requests[name]-before.requests[name]) / float64(len(burst.waiting)); n >= leastRequests {
			r.Requests[name] = n
		}
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

// memory returns the MiB that kube-scheduler and the extender took at their peak.
func (r Round) memory() float64 { return sum(r.MemoryMiB) }

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
	for _, name := range slices.Sorted(maps.Keys(r.MemoryMiB)) {
		fmt.Fprintf(&b, "; memory of the %s at most %.0f MiB", name, r.MemoryMiB[name])
	}
	if r.Refused != nil {
		fmt.Fprintf(&b, "; Binds refused: %d", sum(r.Refused))
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Refused)) {
		fmt.Fprintf(&b, ", %s %d", reason, r.Refused[reason])
	}
	if len(r.Requests) > 0 {
		fmt.Fprintf(&b, "; requests per pod: %s", strings.Join(r.requests(), ", "))
	}
	return b.String()
}

// requests returns the requests per pod, a text each.
func (r Round) requests() (out []string) {
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		out = append(out, fmt.Sprintf("%s %.2f", name, r.Requests[name]))
	}
	return out
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
	Control        *Range // the same of gpumem-scheduler with nothing to do; nil: not measured
}

// Range is how far the rounds of one side lie apart.
type Range struct{ Low, High float64 }

// figure is one that is compared with plain kube-scheduler's, those first that other work on the
// machine changes least.
type figure struct {
	name   string
	of     func(Round) float64
	larger bool // the larger the better
	noisy  bool // what else the machine does changes it
}

var compared = []figure{
	{"processor-time", Round.processor, false, false},
	{"memory", Round.memory, false, false},
	{"throughput", func(r Round) float64 { return r.Rate }, true, true},
	{"burst-p99", func(r Round) float64 { return r.BurstP99 }, false, true},
	{"stream-p99", func(r Round) float64 { return r.StreamP99 }, false, true},
}

// goal returns what a figure of a side is to be; 0: whatever.
func (c Comparison) goal(side, figure string) float64 {
	if side == all {
		side = plugin // the goals are the same
	}
	switch side + " " + figure {
	case plugin + " processor-time":
		if c.Nodes > manyNodes {
			return mostTimeOfMany
		}
		return mostTime
	case sampled + " processor-time":
		return mostTimeSampled
	case plugin + " memory":
		return mostResident
	case plugin + " throughput":
		return leastRate
	case plugin + " burst-p99", plugin + " stream-p99":
		return mostWaiting
	}
	return 0
}

// Results returns the figures that tell.
func (r Report) Results() (out []Result) {
	for _, c := range r.Sizes {
		for _, figure := range compared {
			for _, side := range Sides() {
				if side != plain && len(c.Rounds[side]) > 0 && len(c.Rounds[plain]) > 0 {
					out = append(out, c.ratio(side, figure))
				}
			}
		}
		for _, side := range []string{plugin, extended} {
			if len(c.Rounds[side]) > 0 {
				out = append(out, c.refused(side), c.longest(side))
			}
		}
		if len(c.Rounds[flooded]) > 0 && len(c.Rounds[extended]) > 0 {
			out = append(out, c.flooded()...)
		}
	}
	return out
}

func (c Comparison) name(side, of string) string {
	return fmt.Sprintf("%s-%s-%d-nodes", side, of, c.Nodes)
}

// ratio compares a figure of a side with that of plain kube-scheduler. A goal of a noisy one counts
// as met where it is no worse than in some round of the control, which does nothing.
func (c Comparison) ratio(side string, f figure) Result {
	ratios := quotients(c.Rounds[side], c.Rounds[plain], f.of)
	result := span(c.name(side, f.name), c.goal(side, f.name), ratios, median(ratios))
	meets := func(limit float64) bool { return f.larger && result.Mid >= limit || !f.larger && result.Mid <= limit }
	result.Met = result.Goal == 0 || meets(result.Goal)
	if len(c.Rounds[off]) > 0 && side != off {
		control := quotients(c.Rounds[off], c.Rounds[plain], f.of)
		result.Control = &Range{control[0], control[len(control)-1]}
		worst := result.Control.High
		if f.larger {
			worst = result.Control.Low
		}
		result.Met = result.Met || f.noisy && meets(worst)
	}
	return result
}

// flooded compares the extender under a flood with itself.
func (c Comparison) flooded() []Result {
	ratios := quotients(c.Rounds[flooded], c.Rounds[extended], Round.processor)
	all := each(c.Rounds[flooded], func(r Round) float64 { return r.MemoryMiB[extender] })
	return []Result{
		span(c.name(flooded, "processor-time-beside-none"), mostFlooded, ratios, median(ratios)),
		span(c.name(flooded, "memory-mib"), mostMemory, all, slices.Max(all)),
	}
}

// span is a figure of all rounds, sorted, and the one of them that is not to be above the goal.
func span(name string, goal float64, sorted []float64, mid float64) Result {
	return Result{Name: name, Goal: goal, Low: sorted[0], Mid: mid, High: sorted[len(sorted)-1], Met: goal == 0 || mid <= goal}
}

// refused is about the Binds of all rounds of a side together.
func (c Comparison) refused(side string) Result {
	all := each(c.Rounds[side], Round.refused)
	mean := 0.0
	for _, one := range all { // rounds have as many pods each
		mean += one / float64(len(all))
	}
	return span(c.name(side, "refused-binds-percent"), mostRefused, all, mean)
}

// longest is about the pod that waited longest in any round of a side.
func (c Comparison) longest(side string) Result {
	of := func(side string) []float64 { return each(c.Rounds[side], func(r Round) float64 { return r.Longest }) }
	goal := 0.0
	if all := of(plain); len(all) > 0 {
		goal = slices.Max(all) + mostDelay
	}
	return span(c.name(side, "longest-wait"), goal, of(side), slices.Max(of(side)))
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
				fmt.Fprintf(&b, "%5d nodes, %-8s %v\n", c.Nodes, side, one)
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
	if r.Control != nil {
		text += fmt.Sprintf("; control: %.2f to %.2f", r.Control.Low, r.Control.High)
	}
	return text + ")"
}
