package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	r := &report{progress: io.Discard}
	r.add(
		spread("ratio", "×", []float64{3, 1, 2, 1.5, 9}).atMost(2),
		result{Name: "pods", Value: 0.9, Unit: "×"}.atLeast(0.95),
		result{Name: "time", Value: 1234, Unit: "µs"},
	)
	var out strings.Builder
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	want := `NAME   VALUE    HALF OF THEM
ratio  2.00 ×   1.50 to 3.00
pods   0.90 ×   
time   1234 µs  

result: ratio 2.00 goal 2.00 met
result: pods 0.90 goal 0.95 missed
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAsks: what is measured does its work.
func TestAsks(t *testing.T) {
	f, err := newFleet(100, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []ask{f.filter(), f.next(), f.prioritize(), f.preempt(), f.bind()} {
		if m := a.measure(1); len(m.ratios) != 1 || m.took <= 0 {
			t.Errorf("%s: %+v", a.verb, m)
		}
	}
	if f.bound == 0 {
		t.Error("no pod was bound")
	}
}

// TestNext: each question finds one pod more, that goes when it is answered.
func TestNext(t *testing.T) {
	f, err := newFleet(10, 2)
	if err != nil {
		t.Fatal(err)
	}
	pods := func() (out []int) {
		for _, node := range f.Cache.Nodes() {
			out = append(out, len(node.Holdings()))
		}
		slices.Sort(out)
		return out
	}
	full := slices.Repeat([]int{16}, 10)
	a := f.next()
	for range 3 {
		a.body()
		if diff := cmp.Diff(append(full[:9:9], 17), pods()); diff != "" {
			t.Errorf("pods of the nodes at a question (-want +got):\n%s", diff)
		}
		a.done()
		if diff := cmp.Diff(full, pods()); diff != "" {
			t.Errorf("pods of the nodes after it (-want +got):\n%s", diff)
		}
	}
}

func TestStress(t *testing.T) {
	s, err := newStress()
	if err != nil {
		t.Fatal(err)
	}
	defer s.server.Close()
	if _, err := s.run(t.Context(), 8, time.Second); err != nil {
		t.Fatal(err)
	}
	if s.errors.Load() != 0 || len(s.over) != 0 || s.placed.Load() == 0 {
		t.Errorf("%d errors, %d GPUs with more than they have, %d pods bound", s.errors.Load(), len(s.over), s.placed.Load())
	}
}

// TestAllocations guards what a call costs, by a figure that does not depend on
// the machine: what is allocated beyond decoding the question and encoding the
// answer must not grow with the nodes that are asked about.
func TestAllocations(t *testing.T) {
	const most = 300 // filter and bind have about 130, prioritize 50
	for _, nodes := range []int{100, 2000} {
		f, err := newFleet(nodes, podsPerGPU)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []ask{f.filter(), f.prioritize(), f.bind()} {
			a.allocations(a.routes) // the first call finds nothing kept
			if got := a.allocations(a.routes) - a.allocations(a.null); got > most {
				t.Errorf("%s of %d nodes: %.0f allocations beyond those of a handler that decides nothing, want at most %d", a.verb, nodes, got, most)
			}
		}
	}
}
