package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Config says which run to make. The rest of a run follows from its seed.
type Config struct {
	Seed  uint64
	Steps int       // with faults, once the cluster is up; what follows until rest does not count
	Out   io.Writer // gets a line for each step, if it is not nil
	Nodes int       // how many; 0: a few

	Adversary adversary // none, if that is not said
	Mode      mode      // that of the extender, if that is not said

	// What there is in this run, drawn from the seed.
	Cores      bool // pods that ask for cores, too
	Shares     bool // nodes that offer GPUs in shares, too, pods that ask for these, and MIG instances
	Rules      bool // pods that name GPUs, groups, policies
	Nonsense   bool // pods that cannot be read
	Unassigned bool // pods that no scheduler places
	Refuse     bool // the plugins refuse those
	Narrow     bool // pods of few shapes, which are easily taken for one another
	Equal      bool // most pods are alike
	Namesakes  bool // most pods are made again under their names, after force
	Samples    int  // index of the replica whose kube-scheduler asks about some of the nodes alone
	Hints      bool // it has queueing hints
	Eager      bool // and does not have pods wait while there is nothing else to do
	Alone      bool // Filter names one node alone
	policy     string
	nodePolicy string
	callFaults int           // of this many calls to the API server, seven go wrong
	batches    int           // of this many pods, one comes to the kubelet with those that follow it
	status     time.Duration // the longest that a kubelet takes to write a pod's status
	kinds      []fault
}

// Result is how a run went.
type Result struct {
	Violation *Violation
	Counts
}

// Counts is what happened in runs, beside violations.
type Counts struct {
	Steps   int
	Virtual time.Duration
	Bound   int // pods
	Excused int // times that a place was chosen without news of another pod

	// What is seen of I10.
	Prompt   int           // pods that were bound, after they fitted
	Promptly time.Duration // how long that took them all
	Longest  time.Duration // how long one has waited, at most
	Woken    int           // times that an extender had one tried again
}

// Add adds what happened in other runs.
func (c *Counts) Add(o Counts) {
	c.Steps += o.Steps
	c.Virtual += o.Virtual
	c.Bound += o.Bound
	c.Excused += o.Excused
	c.Prompt += o.Prompt
	c.Promptly += o.Promptly
	c.Woken += o.Woken
	c.Longest = max(c.Longest, o.Longest)
}

// String returns two lines: about pods, and about the delay of pods that fitted.
func (c Counts) String() string {
	return fmt.Sprintf("pods: %d bound in %s of virtual time; %d (%.1f%%) placed by somebody who could not know of another\n",
		c.Bound, c.Virtual.Round(time.Second), c.Excused, 100*float64(c.Excused)/float64(max(1, c.Bound))) +
		fmt.Sprintf("liveness: %d pods were bound that fitted, %s later on average, %s at most; kube-scheduler was woken %d times",
			c.Prompt, (c.Promptly/time.Duration(max(1, c.Prompt))).Round(tick), c.Longest.Round(tick), c.Woken)
}

// restTime is how long it takes until everything has settled: longer than an
// assumption may live, and than two rounds of each part's own looking around.
const restTime = 180 * time.Second

// probeTime is long enough for pods that come at rest: they are scheduled again
// and again, and admitted at once.
const probeTime = 25 * time.Second

// Run makes one run in a bubble of virtual time.
func Run(t *testing.T, cfg Config) (result Result) {
	synctest.Test(t, func(*testing.T) {
		w := newWorld(cfg)
		w.mu.Lock()
		for (w.up == 0 || w.steps-w.up < cfg.Steps) && w.next(time.Hour) {
		}
		if w.found == nil {
			w.calm()
			end := w.now() + restTime
			for w.next(end) {
			}
		}
		if w.found == nil {
			w.checkRest()
		}
		if w.found == nil {
			w.probe()
		}
		if w.found == nil {
			w.checkRest()
		}
		result.Violation = w.found
		w.counts.Steps, w.counts.Virtual = w.steps, w.now()
		for _, s := range w.order {
			if s.wasBound {
				w.counts.Bound++
			}
		}
		result.Counts = w.counts
		w.end()
		w.mu.Unlock()
		time.Sleep(time.Hour) // for timers of dead processes to run off
	})
	return result
}

func newWorld(cfg Config) *World {
	w := &World{
		rng: rand.New(rand.NewPCG(cfg.Seed, 0x9e3779b97f4a7c15)), start: time.Now(),
		pods: make(map[string]*spec), sent: make(map[string][]sending), decoded: make(map[string]decoded), out: cfg.Out,
	}
	w.api = newAPIServer(w)
	w.cfg = w.draw(cfg)
	w.names, _ = api.NewNames(api.DefaultDomain) // which is one
	w.resources = []gpu.Resource{gpu.Memory}
	if w.cfg.Cores {
		w.resources = append(w.resources, gpu.Cores)
	}
	open := w.openNodes()
	for i := range w.cfg.Nodes {
		m := w.newMachine(fmt.Sprintf("n%d", i+1))
		w.machines = append(w.machines, m)
		if !slices.Contains(open, i) {
			m.fill()
		}
		m.startKubelet()
		m.startPlugin()
	}
	for i, name := range []string{"a", "b"} {
		r := &replica{name: name, samples: i == w.cfg.Samples}
		r.ext = w.newExtender(r)
		w.replicas = append(w.replicas, r)
	}
	if w.cfg.Mode == throughExtender {
		w.startScheduler(w.replicas[0])
	}
	w.after(3*time.Second, nil, "the cluster is up", func() {
		w.up = w.steps
		w.logf("  %d nodes; %s; %s", w.cfg.Nodes, w.kubeScheduler(w.replicas[0]), w.cfg.Adversary)
		for range 3 {
			w.create(w.newSpec())
		}
		w.chaos()
		if w.cfg.Adversary != without {
			w.scheme()
		}
	})
	return w
}

// openNodes draws the nodes on which pods fit at first: all of two, a third of some,
// and of a large fleet a handful. Other programs use the rest, which kube-scheduler
// does not know: their sums have room.
func (w *World) openNodes() []int {
	all := w.rng.Perm(w.cfg.Nodes)
	switch {
	case w.cfg.Nodes <= 2:
		w.room = 14
		return all
	case w.cfg.Nodes <= few:
		all = all[:w.cfg.Nodes/3]
	default:
		all = all[:1+w.rng.IntN(4)]
	}
	w.room = max(14, 7*len(all))
	return all
}

// draw decides what the run has. Few kinds of faults at a time let each have its
// consequences.
func (w *World) draw(cfg Config) Config {
	often := func(n int) bool { return w.rng.IntN(n) == 0 }
	cfg.Rules, cfg.Nonsense, cfg.Unassigned, cfg.Refuse = often(2), often(4), often(3), often(4)
	cfg.Narrow, cfg.Equal, cfg.Namesakes = often(3), often(4), often(4)
	cfg.Cores = often(4)
	_ = often(8) // keeps the draws of recorded seeds
	cfg.batches, cfg.status = pick(w.rng, []int{8, 8, 2}), pick(w.rng, []time.Duration{100 * tick, 100 * tick, 2 * time.Second})
	cfg.policy = string(pick(w.rng, placement.ClusterPolicies()))
	cfg.nodePolicy = string(pick(w.rng, append([]placement.Policy{""}, placement.ClusterPolicies()...)))
	cfg.callFaults = pick(w.rng, []int{20, 60, 200})
	if cfg.Nodes == 0 {
		cfg.Nodes = pick(w.rng, []int{2, 2, 2, 2, 2, few})
	}
	cfg.Samples, cfg.Hints, cfg.Alone = w.rng.IntN(2), !often(3), often(2)
	cfg.Eager = cfg.Hints && !often(4)
	cfg.Hints = cfg.Hints || cfg.Mode == inProcess
	share := 1 + w.rng.IntN(3)
	for _, f := range allFaults {
		if w.rng.IntN(4) < share {
			cfg.kinds = append(cfg.kinds, f)
		}
	}
	if cfg.Mode == inProcess && often(2) {
		cfg.kinds = append(cfg.kinds, frozen)
	}
	if len(cfg.kinds) > 0 && often(3) { // one of them all the time
		cfg.kinds = append(cfg.kinds, slices.Repeat([]fault{pick(w.rng, cfg.kinds)}, 2*len(cfg.kinds))...)
	}
	cfg.Shares = cfg.Seed%8 == 5 && !cfg.Cores && cfg.Adversary == without // no seed draws otherwise for it
	return cfg
}

// end kills everything, so that no goroutine is left.
func (w *World) end() {
	w.stopped = true
	for _, m := range w.machines {
		for _, c := range m.rpcs {
			c.cancel()
		}
		if m.plugin != nil {
			m.plugin.endStreams()
			if m.plugin.endPass != nil {
				m.plugin.endPass()
			}
		}
	}
	for _, p := range w.procs {
		p.kill()
	}
}
