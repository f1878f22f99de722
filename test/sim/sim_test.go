package sim

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	seeds  = flag.Int("seeds", 300, "how many seeds to run")
	first  = flag.Uint64("first", 1, "the first seed")
	seed   = flag.Uint64("seed", 0, "run this seed alone, and print it")
	steps  = flag.Int("steps", 400, "steps with faults in a run")
	nodes  = flag.Int("nodes", 0, "how many nodes each run has; 0: some have a few more than others")
	foe    = flag.Int("adversary", -1, "0: none, 1: under policies, 2: without; -1: the seed says")
	within = flag.Int("mode", -1, "0: the extender, 1: the plugin; -1: the seed says")
	fleets = flag.Int("fleets", 10, "how many seeds to run with a large fleet")
	all    = flag.Bool("all", false, "go on after a violation, and list them all")
	shrink = flag.Bool("shrink", true, "look for the shortest prefix of a run that breaks an invariant, and print its run")
)

// lastLine is printed when all is over: people and scripts look for it there.
var lastLine string

func TestMain(m *testing.M) {
	flag.Parse()
	debug.SetGCPercent(400) // the worlds are small, and thrown away
	code := m.Run()
	if lastLine != "" {
		fmt.Println(lastLine)
	}
	os.Exit(code)
}

// TestSim runs many seeds.
func TestSim(t *testing.T) {
	if *seed != 0 {
		one(t, *seed, *steps)
		return
	}
	s := &search{seeds: *seeds, nodes: *nodes}
	s.run(t)
	fmt.Println(s.counts)
	fmt.Printf("speed: %.0f seeds a second\n", float64(s.done)/time.Since(s.start).Seconds())
	lastLine = fmt.Sprintf("result: sim seeds=%d steps=%d violations=%d", s.done, s.counts.Steps, s.violations)
	if s.violations == 0 {
		return
	}
	n := *steps
	if *shrink {
		n = shortest(t, s.worst.seed)
		one(t, s.worst.seed, n)
	}
	c := config(s.worst.seed, n, *nodes)
	t.Errorf("See it: cd test/sim && go test -run TestSim$ -seed=%d -steps=%d -nodes=%d -adversary=%d -mode=%d .\n"+
		"Keep it: a file in test/sim/testdata that begins with \"seed %d steps %d adversary %d mode %d\" and says below what went wrong.",
		c.Seed, n, *nodes, c.Adversary, c.Mode, c.Seed, n, c.Adversary, c.Mode)
}

// TestFleet runs some seeds with so many nodes that kube-scheduler asks about some of
// them alone. Pods fit on a handful.
func TestFleet(t *testing.T) {
	const all = 300
	s := &search{seeds: *fleets, nodes: all}
	s.run(t)
	fmt.Println(s.counts)
	if s.violations > 0 {
		t.Errorf("See it: cd test/sim && go test -run TestSim$ -seed=%d -nodes=%d .", s.worst.seed, all)
	}
}

// config has one run in three with an adversary, and one in two in each mode.
func config(seed uint64, steps, nodes int) Config {
	c := Config{Seed: seed, Steps: steps, Nodes: nodes, Adversary: adversaryOf(seed), Mode: modeOf(seed)}
	if *foe >= 0 {
		c.Adversary = adversary(*foe)
	}
	if *within >= 0 {
		c.Mode = mode(*within)
	}
	return c
}

// search is a number of seeds being run by several workers.
type search struct {
	seeds, nodes int
	start        time.Time

	mu         sync.Mutex
	next, done int
	violations int
	counts     Counts
	worst      struct { // the lowest seed that breaks an invariant
		seed uint64
		Result
	}
	told time.Time // progress
}

// run has all seeds run, or those up to the first violation, which it tells of.
func (s *search) run(t *testing.T) {
	t.Helper()
	s.start = time.Now()
	t.Run("seeds", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				s.work(t)
			})
		}
	})
	if s.violations > 0 {
		t.Errorf("seed %d: %v", s.worst.seed, s.worst.Violation)
	}
}

func (s *search) work(t *testing.T) {
	for {
		seed, ok := s.take()
		if !ok {
			return
		}
		s.add(seed, Run(t, config(seed, *steps, s.nodes)))
	}
}

// take returns the next seed. All that are lower have been taken, so the lowest
// that breaks an invariant is always found.
func (s *search) take() (seed uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next >= s.seeds || s.violations > 0 && !*all {
		return 0, false
	}
	s.next++
	return *first + uint64(s.next) - 1, true
}

func (s *search) add(seed uint64, r Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	s.counts.Add(r.Counts)
	if v := r.Violation; v != nil {
		s.violations++
		fmt.Printf("violation: seed=%d step=%d invariant=%s %s\n", seed, v.Step, v.Invariant, v.Detail)
		if s.worst.Violation == nil || seed < s.worst.seed {
			s.worst.seed, s.worst.Result = seed, r
		}
	}
	if now := time.Now(); now.Sub(s.told) > 10*time.Second && now.Sub(s.start) > 10*time.Second {
		s.told = now
		fmt.Printf("sim: %d of %d seeds, %d steps, %d violations after %s\n", s.done, s.seeds, s.counts.Steps, s.violations, now.Sub(s.start).Round(time.Second))
	}
}

// one runs a seed and prints what happens in it.
func one(t *testing.T, seed uint64, steps int) {
	t.Helper()
	var out bytes.Buffer
	cfg := config(seed, steps, *nodes)
	cfg.Out = &out
	result := Run(t, cfg)
	os.Stdout.Write(out.Bytes())
	if result.Violation != nil {
		t.Errorf("seed %d, %d steps: %v", seed, steps, result.Violation)
	}
}

// shortest returns the fewest steps with faults after which a run breaks an
// invariant, at once or on the way to rest. It tries them all: what follows when
// the faults end depends on when they do.
func shortest(t *testing.T, seed uint64) int {
	for n := range *steps {
		if Run(t, config(seed, n, *nodes)).Violation != nil {
			return n
		}
	}
	return *steps
}

// TestTraces runs what once broke an invariant.
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("traces: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			cfg := Config{}
			line, _, _ := strings.Cut(string(content), "\n")
			if _, err := fmt.Sscanf(line, "seed %d steps %d adversary %d mode %d", &cfg.Seed, &cfg.Steps, &cfg.Adversary, &cfg.Mode); err != nil {
				t.Fatalf("want \"seed N steps M adversary A mode E\" in the first line: %v", err)
			}
			if v := Run(t, cfg).Violation; v != nil {
				t.Error(v)
			}
		})
	}
}

// TestTwice pins what everything here leans on: a seed is one run.
func TestTwice(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		var runs [2]bytes.Buffer
		for i := range runs {
			cfg := config(seed, 400, 0)
			cfg.Out = &runs[i]
			Run(t, cfg)
		}
		if diff := cmp.Diff(runs[0].String(), runs[1].String()); diff != "" {
			t.Fatalf("seed %d runs differently the second time (-first +second):\n%s", seed, diff)
		}
	}
}

// A rule applies to a pod until its bound, and anew once it has not applied meanwhile.
func TestEachExcuseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &World{start: time.Now()}
		s := &spec{life: &life{excused: make(map[rule]time.Duration)}}
		check := func(when string, want bool) {
			t.Helper()
			if got := w.isExcused(s); got != want {
				t.Errorf("%s: excused: %t, want %t", when, got, want)
			}
		}
		check("at first", false)
		w.excuse(s, unheardPod, "")
		time.Sleep(unheardPod.bound)
		check("at the bound", true)
		if got := s.misplacedUntil(); got != w.now() {
			t.Errorf("the pod excuses its neighbours until %s, want %s", got, w.now())
		}
		time.Sleep(time.Nanosecond)
		check("after the bound", false)
		for range 2 {
			w.excuseWhile(true, s, exchange)
			check("while it applies", true)
			time.Sleep(exchange.bound + 1)
			w.excuseWhile(true, s, exchange)
			check("while it applies for too long", false)
			w.excuseWhile(false, s, exchange)
			check("when it does not apply", false)
		}
		if got := s.misplacedUntil(); got != unheardPod.bound {
			t.Errorf("an exchange excuses the pod's neighbours: until %s, want %s", got, unheardPod.bound)
		}
	})
}
