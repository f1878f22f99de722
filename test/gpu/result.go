package main

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
)

// Result is what was seen on one machine. It is kept in results/, and docs/hardware.md is made
// of all that are there.
type Result struct {
	Date      string `json:"date"` // YYYY-MM-DD
	GPU       string `json:"gpu"`  // model of the first
	GPUs      int    `json:"gpus"`
	MemoryMiB int64  `json:"memoryMiB"` // of the first
	SMs       int    `json:"sms,omitempty"`
	Driver    string `json:"driver"`
	Linux     string `json:"linux"`

	Lines   []Line   `json:"lines"`
	Sharing []Series `json:"sharing,omitempty"`
}

// Verdict is what became of a line.
type Verdict string

// The verdicts.
const (
	Pass     Verdict = "pass"
	Fail     Verdict = "fail"
	NotTried Verdict = "not tried"
)

// Line is one question, and its answer.
type Line struct {
	Part    string  `json:"part"`
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Says    string  `json:"says,omitempty"` // what was seen, or why it was not tried
}

// notTried is the error of a question that could not be asked.
type notTried struct{ why string }

func (n notTried) Error() string { return n.why }

func cannot(format string, args ...any) error { return notTried{fmt.Sprintf(format, args...)} }

// answer makes a line. An error is a failure, unless it says why the question was not asked.
func answer(part, name, seen string, err error) Line {
	var not notTried
	switch {
	case errors.As(err, &not):
		return Line{part, name, NotTried, not.why}
	case err != nil:
		return Line{part, name, Fail, err.Error()}
	default:
		return Line{part, name, Pass, seen}
	}
}

// Series is what programs did that share a GPU, by how many they were.
type Series struct {
	How    string  `json:"how"` // time-slicing, or the level
	Points []Point `json:"points"`
}

// Point is what some programs did together on one GPU.
type Point struct {
	Sharers   int     `json:"sharers"`
	PerSecond float64 `json:"perSecond"` // kernels, of all programs
	P50       float64 `json:"p50ms"`     // milliseconds until a kernel was done: the median of the programs' medians
	P99       float64 `json:"p99ms"`     // the worst program's
	Spread    float64 `json:"spread"`    // standard deviation by mean of the programs' kernels
	Start     float64 `json:"start"`     // seconds until CUDA was ready in the last program
	Failed    int     `json:"failed,omitempty"`
	Error     string  `json:"error,omitempty"` // of the first that failed
}

// Probe is what the CUDA program says.
type Probe struct {
	OK    bool    `json:"ok"`
	Error string  `json:"error,omitempty"`
	Start float64 `json:"start,omitempty"` // seconds until CUDA was ready

	Launches int     `json:"launches,omitempty"`
	P50      float64 `json:"p50,omitempty"` // milliseconds of a launch
	P99      float64 `json:"p99,omitempty"`

	GPUs     int    `json:"gpus,omitempty"` // that it sees
	SMs      int    `json:"sms,omitempty"`
	TotalMiB int64  `json:"totalMiB,omitempty"`
	HasMiB   int64  `json:"hasMiB,omitempty"`
	Refused  string `json:"refused,omitempty"`
}

// refused reports whether CUDA has said that there is no more memory.
func (p Probe) refused() bool { return strings.Contains(p.Error, "OUT_OF_MEMORY") }

// share adds up what programs say that computed at the same time.
func share(probes []Probe, seconds float64) Point {
	s := Point{Sharers: len(probes)}
	launches := 0
	var medians []float64
	for _, p := range probes {
		launches += p.Launches
		s.Start, s.P99 = max(s.Start, p.Start), max(s.P99, p.P99)
		if !p.OK {
			s.Failed++
			if s.Error == "" {
				s.Error = p.Error
			}
			continue
		}
		medians = append(medians, p.P50)
	}
	s.PerSecond = float64(launches) / seconds
	if len(medians) > 0 {
		slices.Sort(medians)
		s.P50 = medians[len(medians)/2]
	}
	mean := float64(launches) / float64(len(probes))
	var squares float64
	for _, p := range probes {
		squares += (float64(p.Launches) - mean) * (float64(p.Launches) - mean)
	}
	if mean > 0 {
		s.Spread = math.Sqrt(squares/float64(len(probes))) / mean
	}
	return s
}

// series returns what was measured of one way to share.
func (r Result) series(how string) (Series, bool) {
	i := slices.IndexFunc(r.Sharing, func(s Series) bool { return s.How == how })
	if i < 0 {
		return Series{}, false
	}
	return r.Sharing[i], true
}

// at returns the point of so many programs.
func (s Series) at(sharers int) (Point, bool) {
	i := slices.IndexFunc(s.Points, func(p Point) bool { return p.Sharers == sharers })
	if i < 0 {
		return Point{}, false
	}
	return s.Points[i], true
}

// failed returns how many lines have failed.
func (r Result) failed() (n int) {
	for _, l := range r.Lines {
		if l.Verdict == Fail {
			n++
		}
	}
	return n
}

var notInNames = regexp.MustCompile(`[^a-z0-9.]+`)

// name is that of the files of a result: the GPU, the driver and the date.
func (r Result) name() string {
	return strings.Trim(notInNames.ReplaceAllString(strings.ToLower(r.GPU+"-"+r.Driver+"-"+r.Date), "-"), "-")
}
