package sim

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	seeds = flag.Int("seeds", 300, "how many seeds to run")
	first = flag.Uint64("first", 1, "the first seed")
	seed  = flag.Uint64("seed", 0, "run this seed alone, and print it")
	steps = flag.Int("steps", 400, "steps with faults in a run")
)

// TestSim runs many seeds.
func TestSim(t *testing.T) {
	if *seed != 0 {
		one(t, *seed, *steps)
		return
	}
	var next, total, bound atomic.Int64
	var failed atomic.Pointer[Config]
	start := time.Now()
	var mu sync.Mutex
	t.Run("seeds", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				for failed.Load() == nil {
					n := next.Add(1) - 1
					if n >= int64(*seeds) {
						return
					}
					cfg := Config{Seed: *first + uint64(n), Steps: *steps}
					result := Run(t, cfg)
					total.Add(int64(result.Steps))
					bound.Add(int64(result.Bound))
					if result.Violation != nil {
						mu.Lock()
						if was := failed.Load(); was == nil || was.Seed > cfg.Seed {
							failed.Store(&cfg)
						}
						mu.Unlock()
					}
				}
			})
		}
	})
	took := time.Since(start)
	if cfg := failed.Load(); cfg != nil {
		n := shortest(t, *cfg)
		t.Errorf("seed %d breaks an invariant; the shortest prefix that does has %d steps.\nIts run: go test ./sim -run TestSim -seed=%d -steps=%d -v\nTo keep it: write \"seed %d steps %d\" to a file in testdata.", cfg.Seed, n, cfg.Seed, n, cfg.Seed, n)
		one(t, cfg.Seed, n)
		fmt.Printf("result: sim seeds=%d steps=%d violations=1\n", min(next.Load(), int64(*seeds)), total.Load())
		return
	}
	t.Logf("%d pods were bound; %.0f seeds a second", bound.Load(), float64(*seeds)/took.Seconds())
	fmt.Printf("result: sim seeds=%d steps=%d violations=0\n", *seeds, total.Load())
}

// one runs a seed and prints what happens in it.
func one(t *testing.T, seed uint64, steps int) {
	t.Helper()
	var out bytes.Buffer
	result := Run(t, Config{Seed: seed, Steps: steps, Out: &out})
	os.Stdout.Write(out.Bytes())
	if result.Violation != nil {
		t.Errorf("seed %d, %d steps: %v", seed, steps, result.Violation)
	}
}

// shortest returns the fewest steps after which the run breaks an invariant,
// at once or on the way to rest.
func shortest(t *testing.T, cfg Config) int {
	low, high := 0, cfg.Steps
	for low < high {
		cfg.Steps = (low + high) / 2
		if Run(t, cfg).Violation != nil {
			high = cfg.Steps
		} else {
			low = cfg.Steps + 1
		}
	}
	return high
}

// TestTwice pins what everything here leans on: a seed is one run.
func TestTwice(t *testing.T) {
	for seed := uint64(1); seed <= 10; seed++ {
		var runs [2]bytes.Buffer
		for i := range runs {
			Run(t, Config{Seed: seed, Steps: 400, Out: &runs[i]})
		}
		if diff := cmp.Diff(runs[0].String(), runs[1].String()); diff != "" {
			t.Fatalf("seed %d runs differently the second time (-first +second):\n%s", seed, diff)
		}
	}
}
