package throughput

import (
	"strings"
	"testing"
	"time"
)

func rounds(rates ...float64) (out []Round) {
	for _, rate := range rates {
		out = append(out, Round{Rate: rate, BurstP99: 1 / rate, StreamP99: 0.1})
	}
	return out
}

func TestReport(t *testing.T) {
	r := Report{Sizes: []Comparison{{Nodes: 500, With: rounds(100, 50, 96), Without: rounds(100, 100, 100), Idle: rounds(100, 80, 100)}}}
	for _, want := range []string{
		"result: throughput-500-nodes 0.96 goal 0.95 met (rounds: 0.50 to 1.00; an extender that decides nothing: 1.00)\n",
		"result: burst-p99-500-nodes 1.04 goal 1.20 met (rounds: 1.00 to 2.00; an extender that decides nothing: 1.00)\n",
		"result: stream-p99-500-nodes 1.00 goal 1.20 met (rounds: 1.00 to 1.00; an extender that decides nothing: 1.00)\n",
	} {
		if got := r.String(); !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	r.Sizes[0].With = rounds(100, 50, 90)
	if got, want := r.String(), "result: throughput-500-nodes 0.90 goal 0.95 missed"; !strings.Contains(got, want) {
		t.Errorf("no %q in:\n%s", want, got)
	}
}

func TestNewRound(t *testing.T) {
	var burst figures
	for i := range 100 {
		burst.waiting = append(burst.waiting, time.Duration(100-i)*time.Second)
	}
	burst.took = 10 * time.Second
	r := newRound(burst, burst, map[string]time.Duration{"etcd": time.Second}, map[string]time.Duration{"etcd": 2 * time.Second})
	if r.Rate != 10 || r.BurstP50 != 50 || r.BurstP99 != 99 || r.Processors["etcd"] != 10 {
		t.Errorf("got %+v, want 10 pods/s, 50 s, 99 s and 10 ms", r)
	}
}
