package main

import (
	"fmt"
	"math"
	"strings"
)

// Result is what was seen on one machine.
type Result struct {
	Date string `json:"date"`
	GPU  string `json:"gpu"` // model and driver

	// TimeSlicing is of programs with no grant and no MPS daemon. The first is alone:
	// exclusive use, with which all are compared.
	TimeSlicing []Shared `json:"timeSlicing"`
	Levels      []Level  `json:"levels"`
}

// Level is what was seen at one level.
type Level struct {
	Level   string            `json:"level"`
	Missing string            `json:"missing,omitempty"` // why it was not measured
	Env     map[string]string `json:"env,omitempty"`     // of a container, from Allocate

	Within    Probe `json:"within"`    // half of the grant
	Beyond    Probe `json:"beyond"`    // twice the grant
	Forked    Probe `json:"forked"`    // twice the grant, in a child
	Both      Probe `json:"both"`      // three quarters of the grant, in parent and child at once
	Neighbour Probe `json:"neighbour"` // computed while another went beyond its grant

	Shared []Shared `json:"shared,omitempty"`
}

// Limits reports whether an allocation beyond the grant was refused, and one within
// was not.
func (l Level) Limits() bool { return l.Within.OK && strings.Contains(l.Beyond.Error, "OUT_OF_MEMORY") }

// Probe is what the CUDA program says.
type Probe struct {
	OK       bool    `json:"ok"`
	Error    string  `json:"error,omitempty"`
	Start    float64 `json:"start,omitempty"` // seconds until CUDA was ready
	Launches int     `json:"launches,omitempty"`
}

// Shared is what some programs did together on one GPU.
type Shared struct {
	Sharers  int     `json:"sharers"`
	Launches int     `json:"launches"` // of all
	Spread   float64 `json:"spread"`   // standard deviation by mean of their launches
	Start    float64 `json:"start"`    // seconds until the last was ready
	Failed   int     `json:"failed,omitempty"`

	OfExclusive   float64 `json:"ofExclusive"`   // launches by those of one program alone
	OfTimeSlicing float64 `json:"ofTimeSlicing"` // launches by those of as many programs without MPS
	Overhead      float64 `json:"overhead"`      // seconds of Start more than those
}

// share adds up what sharers say.
func share(probes []Probe) Shared {
	s := Shared{Sharers: len(probes)}
	for _, p := range probes {
		s.Launches += p.Launches
		s.Start = max(s.Start, p.Start)
		if !p.OK {
			s.Failed++
		}
	}
	mean := float64(s.Launches) / float64(len(probes))
	var squares float64
	for _, p := range probes {
		squares += (float64(p.Launches) - mean) * (float64(p.Launches) - mean)
	}
	if mean > 0 {
		s.Spread = math.Sqrt(squares/float64(len(probes))) / mean
	}
	return s
}

// compare fills in what is relative to exclusive use and to time-slicing.
func (r *Result) compare() {
	for _, list := range r.lists() {
		for i := range list {
			list[i].OfExclusive = ratio(list[i].Launches, r.TimeSlicing[0].Launches)
			list[i].OfTimeSlicing = ratio(list[i].Launches, r.TimeSlicing[i].Launches)
			list[i].Overhead = list[i].Start - r.TimeSlicing[i].Start
		}
	}
}

func (r *Result) lists() [][]Shared {
	out := [][]Shared{r.TimeSlicing}
	for _, l := range r.Levels {
		out = append(out, l.Shared)
	}
	return out
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// Table is the result for people.
func (r Result) Table() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s, %s\n\n", r.GPU, r.Date)
	fmt.Fprintf(&out, "%-13s %-13s %-7s %-7s %-7s %-9s %s\n", "LEVEL", "LIMIT", "WITHIN", "BEYOND", "FORKED", "PROCESSES", "NEIGHBOUR")
	for _, l := range r.Levels {
		if l.Missing != "" {
			fmt.Fprintf(&out, "%-13s not here: %s\n", l.Level, l.Missing)
			continue
		}
		limit := "not enforced"
		if l.Limits() {
			limit = "enforced"
		}
		fmt.Fprintf(&out, "%-13s %-13s %-7s %-7s %-7s %-9s %s\n", l.Level, limit, word(l.Within), word(l.Beyond), word(l.Forked), word(l.Both), word(l.Neighbour))
	}
	fmt.Fprintf(&out, "\n%-13s %-8s %-9s %-13s %-16s %-7s %-8s %s\n", "LEVEL", "SHARERS", "LAUNCHES", "OF EXCLUSIVE", "OF TIME-SLICING", "SPREAD", "START(s)", "OVERHEAD(s)")
	names := []string{"time-slicing"}
	for _, l := range r.Levels {
		names = append(names, l.Level)
	}
	for i, list := range r.lists() {
		for _, s := range list {
			fmt.Fprintf(&out, "%-13s %-8d %-9d %-13.2f %-16.2f %-7.2f %-8.2f %+.2f", names[i], s.Sharers, s.Launches, s.OfExclusive, s.OfTimeSlicing, s.Spread, s.Start, s.Overhead)
			if s.Failed > 0 {
				fmt.Fprintf(&out, "  %d failed", s.Failed)
			}
			fmt.Fprintln(&out)
		}
	}
	return out.String()
}

func word(p Probe) string {
	if p.OK {
		return "works"
	}
	return "fails"
}
