package chaos

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

var (
	duration = flag.Duration("duration", 2*time.Minute, "how long TestChaos kills parts, rests included")
	pods     = flag.Int("pods", 60, "number of pods of TestFailover")
	seed     = flag.Uint64("seed", 0, "seed of the random choices; 0: a new one")
)

// test starts a cluster for one test.
func test(t *testing.T, run func(context.Context, config) (string, error)) {
	if testing.Short() {
		t.Skip("-short leaves out the tests on a real cluster")
	}
	if err := cluster.CheckHost(); err != nil {
		t.Skip("no real cluster on this machine:", err)
	}
	klog.SetLogger(klog.Logger{}) // client-go logs each call to a killed server
	if *seed == 0 {
		*seed = rand.Uint64N(1<<32-1) + 1
	}
	text, err := run(t.Context(), config{seed: *seed, duration: *duration, pods: *pods, log: stack.Progress(os.Stderr)})
	t.Log("seed", *seed, "\n"+text)
	if err != nil {
		t.Error(err)
	}
}

func TestChaos(t *testing.T) { test(t, runChaos) }

func TestFailover(t *testing.T) { test(t, runFailover) }
