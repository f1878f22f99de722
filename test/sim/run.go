package sim

import (
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumem/gpumem/pkg/api"
)

// Config says which run to make. The rest of a run follows from its seed.
type Config struct {
	Seed  uint64
	Steps int       // with faults; what follows until rest does not count
	Out   io.Writer // gets a line for each step, if it is not nil

	// What there is in this run, drawn from the seed.
	Rules      bool // pods that name GPUs, groups, policies
	Nonsense   bool // pods that cannot be read
	Unassigned bool // pods that no scheduler places
	Refuse     bool // the plugins refuse those
	policy     string
	callFaults int // of this many calls to the API server, seven go wrong
	kinds      []fault
}

// Result is how a run went.
type Result struct {
	Steps     int // all
	Chaos     int // those with faults
	Virtual   time.Duration
	Bound     int // pods
	Violation *Violation
}

// restTime is how long it takes until everything has settled: longer than an
// assumption may live, and than two rounds of each part's own looking around.
const restTime = 150 * time.Second

// Run makes one run in a bubble of virtual time.
func Run(t *testing.T, cfg Config) (result Result) {
	synctest.Test(t, func(*testing.T) {
		w := newWorld(cfg)
		w.mu.Lock()
		for w.steps < cfg.Steps && w.next(time.Hour) {
		}
		result.Chaos = w.steps
		if w.found == nil {
			w.calm()
			end := w.now() + restTime
			for w.next(end) {
			}
		}
		if w.found == nil {
			w.checkRest()
		}
		result.Steps, result.Virtual, result.Violation = w.steps, w.now(), w.found
		for _, s := range w.order {
			if s.wasBound {
				result.Bound++
			}
		}
		w.end()
		w.mu.Unlock()
		time.Sleep(time.Hour) // for timers of dead processes to run off
	})
	return result
}

func newWorld(cfg Config) *World {
	w := &World{
		rng: rand.New(rand.NewPCG(cfg.Seed, 0x9e3779b97f4a7c15)), start: time.Now(),
		pods: make(map[string]*spec), decoded: make(map[string]decoded), out: cfg.Out,
	}
	w.names, _ = api.NewNames(api.DefaultDomain) // it is a domain
	w.api = newAPIServer(w)
	w.cfg = w.draw(cfg)
	for _, name := range []string{"n1", "n2"} {
		m := w.newMachine(name)
		w.machines = append(w.machines, m)
		m.startKubelet()
		m.startPlugin()
	}
	for _, name := range []string{"a", "b"} {
		w.replicas = append(w.replicas, &replica{name: name, ext: w.newExtender(name)})
	}
	w.replicas[0].sched = w.newScheduler(w.replicas[0])
	w.after(3*time.Second, nil, "the cluster is up", func() {
		for range 3 {
			w.create(w.newSpec())
		}
		w.chaos()
	})
	return w
}

// draw decides what the run has. Few kinds of faults at a time let the checks
// excuse less.
func (w *World) draw(cfg Config) Config {
	often := func(n int) bool { return w.rng.IntN(n) == 0 }
	cfg.Rules, cfg.Nonsense, cfg.Unassigned, cfg.Refuse = often(2), often(4), often(3), often(4)
	cfg.policy = pick(w.rng, []string{"binpack", "spread"})
	cfg.callFaults = pick(w.rng, []int{20, 60, 200})
	share := 1 + w.rng.IntN(3)
	for _, f := range allFaults {
		if w.rng.IntN(4) < share {
			cfg.kinds = append(cfg.kinds, f)
		}
	}
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
			m.plugin.endStream()
			if m.plugin.endPass != nil {
				m.plugin.endPass()
			}
		}
	}
	for _, p := range w.procs {
		p.kill()
	}
}
