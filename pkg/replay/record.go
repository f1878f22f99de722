package replay

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Record is what a report shows of one run of arrivals.
type Record struct {
	Policy       string    `json:"policy"`
	Seed         int64     `json:"seed"`
	Allocated    []float64 `json:"allocated"`  // per cent of the capacity, at 0, 1, … 130 % of arrived demand
	Fragmented   []float64 `json:"fragmented"` // per cent of the capacity that lies idle where a pod of the trace cannot use it, on average
	FirstFailure float64   `json:"firstFailure"`
	Turned       []Turned  `json:"turnedAway"` // the most first
	Fleet        [][]int   `json:"fleet"`      // at the end, by node and GPU: per cent in use
}

// Turned is how much was turned away of one kind of pods.
type Turned struct {
	Kind  string    `json:"kind"`
	Pods  int       `json:"pods"`
	Units gpu.Units `json:"units"`
}

// Watch places the pods of a trace by a policy, those without a GPU as kube-scheduler does, and keeps
// what a report shows.
func Watch(t Trace, policy string, seed int64) (Record, error) {
	policyOf, err := named(policy)
	if err != nil {
		return Record{}, err
	}
	r, err := prepare(t, policyOf, seed)
	if err != nil {
		return Record{}, err
	}
	w := &watcher{fragments: newFragments(t, r.fleet), turned: make(map[string]Turned)}
	r.watch = w.see
	run, err := r.arrivals()
	if err != nil {
		return Record{}, err
	}
	out := Record{Policy: policy, Seed: seed, FirstFailure: run.FirstFailure(), Allocated: fill(run.Curve()), Fragmented: fill(w.fragmented), Fleet: r.fleet.heat()}
	for _, t := range w.turned {
		out.Turned = append(out.Turned, t)
	}
	slices.SortFunc(out.Turned, func(a, b Turned) int { return cmp.Or(cmp.Compare(b.Units, a.Units), cmp.Compare(a.Kind, b.Kind)) })
	return out, nil
}

// WatchAll watches each policy with each seed, and writes how far it is. The records are by policy
// and then by seed.
func WatchAll(t Trace, policies []string, seeds []int64, workers int, progress io.Writer) ([]Record, error) {
	records := make([]Record, len(policies)*len(seeds))
	errs := make([]error, len(records))
	jobs := make(chan int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	done := 0
	for range max(1, workers) {
		wg.Go(func() {
			for i := range jobs {
				policy, seed := policies[i/len(seeds)], seeds[i%len(seeds)]
				records[i], errs[i] = Watch(t, policy, seed)
				mu.Lock()
				done++
				fmt.Fprintf(progress, "%d of %d: %s, seed %d\n", done, len(records), policy, seed)
				mu.Unlock()
			}
		})
	}
	for i := range records {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	return records, errors.Join(errs...)
}

// watcher looks at a run after each arrival.
type watcher struct {
	fragments  *fragments
	fragmented []float64
	turned     map[string]Turned
}

func (w *watcher) see(f *Fleet, s *shape, arrived gpu.Units, placed bool) {
	if !placed && s.GPUs > 0 {
		kind := fmt.Sprintf("%d × %d", s.GPUs, s.Units)
		t := w.turned[kind]
		w.turned[kind] = Turned{Kind: kind, Pods: t.Pods + 1, Units: t.Units + s.Total()}
	}
	percent := int(100 * arrived / f.capacity)
	for len(w.fragmented) <= min(percent, buckets) {
		sum := 0.0
		for i := range f.nodes {
			sum += w.fragments.fragmentBefore(&f.nodes[i])
		}
		w.fragmented = append(w.fragmented, hundredth(100*sum/float64(f.capacity)))
	}
}

// fill makes a number of each value that is none, which JSON has no word for.
func fill(values []float64) []float64 {
	last := 0.0
	for i, v := range values {
		if v != v {
			values[i] = last
		}
		last = values[i]
	}
	return values
}

// heat returns how much of each GPU is in use, in per cent, nodes in order of
// their names.
func (f *Fleet) heat() [][]int {
	order := make([]*node, len(f.nodes))
	for i := range f.nodes {
		order[i] = &f.nodes[i]
	}
	slices.SortFunc(order, func(a, b *node) int { return cmp.Compare(a.Name, b.Name) })
	out := make([][]int, len(order))
	for i, n := range order {
		for _, d := range n.gpus {
			out[i] = append(out[i], int(100-100*d.free/d.capacity))
		}
	}
	return out
}
