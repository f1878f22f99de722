package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// benchStress lets many schedulers at once filter and bind at one extender, by
// HTTP, each as fast as it is answered.
func benchStress(ctx context.Context, opts options, r *report) error {
	for _, schedulers := range []int{1, 10, 100} {
		duration := opts.duration / 6
		if schedulers == 100 {
			duration = opts.duration
		}
		s, err := newStress()
		if err != nil {
			return err
		}
		latencies, err := s.run(ctx, schedulers, duration)
		s.server.Close()
		if err != nil {
			return err
		}
		slices.Sort(latencies)
		name := fmt.Sprintf("stress-%d", schedulers)
		at := func(part float64) float64 {
			return float64(latencies[int(part*float64(len(latencies)-1))]) / float64(time.Millisecond)
		}
		r.add(
			result{Name: name + "-pods", Value: float64(s.placed.Load()) / duration.Seconds(), Unit: "bound per second"},
			result{Name: name + "-p50", Value: at(0.5), Unit: "ms for filter and bind"},
			result{Name: name + "-p99", Value: at(0.99), Unit: "ms for filter and bind"},
		)
		if schedulers == 100 {
			r.add(
				result{Name: name + "-errors", Value: float64(s.errors.Load()), Unit: "answers"}.atMost(0),
				result{Name: name + "-overcommitted", Value: float64(len(s.over)), Unit: "GPUs, at any time"}.atMost(0),
			)
		}
	}
	return nil
}

// stress is an extender behind HTTP, and books of its own on what was bound.
type stress struct {
	*fleet
	server *httptest.Server

	next, placed, errors atomic.Int64

	mu     sync.Mutex
	shares map[string][]placement.Share // by UID, as its binding says
	held   map[gpu.UUID]gpu.Units
	over   map[gpu.UUID]bool
}

// So few nodes are mostly full.
const (
	stressNodes = 100
	askedNodes  = 50 // for one pod
	podsOfOne   = 40 // that one scheduler has running at most
)

func newStress() (*stress, error) {
	f, err := newFleet(stressNodes, 0)
	if err != nil {
		return nil, err
	}
	s := &stress{
		fleet: f, server: httptest.NewServer(f.Routes("bench")), shares: make(map[string][]placement.Share),
		held: make(map[gpu.UUID]gpu.Units), over: make(map[gpu.UUID]bool),
	}
	f.api.bound = s.charge
	return s, nil
}

// run returns how long each pod took that was bound.
func (s *stress) run(ctx context.Context, schedulers int, duration time.Duration) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: schedulers}}
	defer client.CloseIdleConnections()
	all := make([][]time.Duration, schedulers)
	var wait sync.WaitGroup
	for i := range schedulers {
		wait.Go(func() { all[i] = s.schedule(ctx, client, rand.New(rand.NewPCG(uint64(i), 0))) })
	}
	wait.Wait()
	latencies := slices.Concat(all...)
	if len(latencies) == 0 {
		return nil, errors.New("no pod was bound")
	}
	return latencies, nil
}

// schedule places pods until the time is over. One of its pods ends when it has
// many, or when the next fits nowhere.
func (s *stress) schedule(ctx context.Context, client *http.Client, random *rand.Rand) (latencies []time.Duration) {
	var running []*v1.Pod
	for ctx.Err() == nil {
		p := pod(s.Names, int(s.next.Add(1))+10_000_000, sizes[random.IntN(len(sizes))])
		s.api.create(p)
		began := time.Now()
		if s.place(ctx, client, random, p) {
			latencies = append(latencies, time.Since(began))
			running = append(running, p)
		}
		s.api.remove(p)
		if len(running) == podsOfOne || len(running) > 0 && p != running[len(running)-1] {
			i := random.IntN(len(running))
			s.end(running[i])
			running = slices.Delete(running, i, i+1)
		}
	}
	return latencies
}

// place filters and binds one pod, and reports whether it is bound. That another
// scheduler was faster is no error.
func (s *stress) place(ctx context.Context, client *http.Client, random *rand.Rand, p *v1.Pod) bool {
	first := random.IntN(len(s.names) - askedNodes)
	names := s.names[first : first+askedNodes]
	var fits extenderv1.ExtenderFilterResult
	err := s.post(ctx, client, "/filter", extenderv1.ExtenderArgs{Pod: p, NodeNames: &names}, &fits)
	if err != nil || fits.Error != "" || len(*fits.NodeNames) == 0 {
		s.count(ctx, err != nil || fits.Error != "")
		return false
	}
	node := (*fits.NodeNames)[random.IntN(len(*fits.NodeNames))]
	var answer extenderv1.ExtenderBindingResult
	err = s.post(ctx, client, "/bind", extenderv1.ExtenderBindingArgs{PodName: p.Name, PodNamespace: p.Namespace, PodUID: p.UID, Node: node}, &answer)
	s.count(ctx, err != nil)
	if err != nil || answer.Error != "" {
		return false
	}
	s.placed.Add(1)
	// The watch tells of it, and the kubelet admits it.
	holding := placement.Holding{Pod: api.Ref(p), Assignment: placement.Assignment{Shares: s.sharesOf(p)}, Admitted: true}
	if holding.Request, err = s.Names.Request(p); err != nil {
		panic(err) // a pod of this program
	}
	s.Cache.AddPod(node, holding)
	return true
}

// count counts a failure, unless it is that the time is over.
func (s *stress) count(ctx context.Context, failed bool) {
	if failed && ctx.Err() == nil {
		s.errors.Add(1)
	}
}

func (s *stress) post(ctx context.Context, client *http.Client, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.server.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(out)
}

// charge takes down a binding when the API server has it.
func (s *stress) charge(b *v1.Binding) {
	assignment, err := api.DecodeAssignment(b.Annotations[s.Names.Assignment()])
	if err != nil {
		s.errors.Add(1)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shares[string(b.UID)] = assignment.Shares
	for _, share := range assignment.Shares {
		s.held[share.Device] += share.Units
		if s.held[share.Device] > s.capacity[share.Device] {
			s.over[share.Device] = true
		}
	}
}

// end lets a pod end: its memory is free before the extender hears of it.
func (s *stress) end(p *v1.Pod) {
	s.mu.Lock()
	for _, share := range s.shares[string(p.UID)] {
		s.held[share.Device] -= share.Units
	}
	delete(s.shares, string(p.UID))
	s.mu.Unlock()
	s.Cache.RemovePod(string(p.UID))
}

func (s *stress) sharesOf(p *v1.Pod) []placement.Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shares[string(p.UID)]
}
