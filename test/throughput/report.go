package throughput

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The goals, as ratios of a kube-scheduler with the extender to one without.
const (
	leastRate   = 0.95
	mostWaiting = 1.2
)

// Round is one measurement.
type Round struct {
	Rate       float64            // pods bound per second, of those made at once
	BurstP50   float64            // seconds from a pod's creation to its binding
	BurstP99   float64            // the same
	StreamP50  float64            // the same of the stream
	StreamP99  float64            // the same
	Processors map[string]float64 // milliseconds on a processor, per pod made at once, by process
}

func newRound(burst, stream figures, before, after map[string]time.Duration) Round {
	r := Round{
		Rate:     float64(len(burst.waiting)) / burst.took.Seconds(),
		BurstP50: quantile(burst.waiting, 0.5), BurstP99: quantile(burst.waiting, 0.99),
		StreamP50: quantile(stream.waiting, 0.5), StreamP99: quantile(stream.waiting, 0.99),
		Processors: make(map[string]float64),
	}
	for name := range after {
		spent := after[name] - before[name]
		r.Processors[name] = spent.Seconds() * 1000 / float64(len(burst.waiting))
	}
	return r
}

// quantile returns the time in seconds that the part q of all is not above.
func quantile(all []time.Duration, q float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[int(q*float64(len(sorted)-1))].Seconds()
}

func (r Round) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%5.0f pods/s; waiting p50 %.2f s, p99 %.2f s; in the stream p50 %.3f s, p99 %.3f s; ms per pod:",
		r.Rate, r.BurstP50, r.BurstP99, r.StreamP50, r.StreamP99)
	for _, name := range slices.Sorted(maps.Keys(r.Processors)) {
		fmt.Fprintf(&b, " %s %.2f", name, r.Processors[name])
	}
	return b.String()
}

// Comparison is what was measured with one size of the fleet, round by round.
type Comparison struct {
	Nodes               int
	With, Without, Idle []Round // gpumem's extender, none, and one that decides nothing
}

// Report is what was measured.
type Report struct{ Sizes []Comparison }

// Result is one ratio of the two sides.
type Result struct {
	Name           string
	Low, Mid, High float64 // of the rounds
	Goal           float64
	Met            bool
	Idle           float64 // the same of an extender that decides nothing
}

// Results returns the ratios that have goals.
func (r Report) Results() []Result {
	var out []Result
	for _, c := range r.Sizes {
		for _, kind := range []struct {
			name   string
			of     func(Round) float64
			goal   float64
			larger bool // is better
		}{
			{"throughput", func(r Round) float64 { return r.Rate }, leastRate, true},
			{"burst-p99", func(r Round) float64 { return r.BurstP99 }, mostWaiting, false},
			{"stream-p99", func(r Round) float64 { return r.StreamP99 }, mostWaiting, false},
		} {
			ratios, idle := ratios(c.With, c.Without, kind.of), ratios(c.Idle, c.Without, kind.of)
			result := Result{
				Name: fmt.Sprintf("%s-%d-nodes", kind.name, c.Nodes), Goal: kind.goal,
				Low: ratios[0], Mid: median(ratios), High: ratios[len(ratios)-1], Idle: median(idle),
			}
			result.Met = result.Mid <= result.Goal
			if kind.larger {
				result.Met = result.Mid >= result.Goal
			}
			out = append(out, result)
		}
	}
	return out
}

// ratios divides round by round, and sorts what comes out.
func ratios(a, b []Round, of func(Round) float64) []float64 {
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
	for _, c := range r.Sizes {
		for i := range c.With {
			fmt.Fprintf(&b, "%5d nodes, with    %v\n", c.Nodes, c.With[i])
			fmt.Fprintf(&b, "%5d nodes, without %v\n", c.Nodes, c.Without[i])
			fmt.Fprintf(&b, "%5d nodes, idle    %v\n", c.Nodes, c.Idle[i])
		}
	}
	for _, one := range r.Results() {
		verdict := "missed"
		if one.Met {
			verdict = "met"
		}
		fmt.Fprintf(&b, "result: %s %.2f goal %.2f %s (rounds: %.2f to %.2f; an extender that decides nothing: %.2f)\n", one.Name, one.Mid, one.Goal, verdict, one.Low, one.High, one.Idle)
	}
	return b.String()
}
