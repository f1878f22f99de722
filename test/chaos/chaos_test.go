package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// config is for a test with a cluster of its own; the test is left out where
// there can be none.
func config(t *testing.T) Config {
	t.Helper()
	if testing.Short() {
		t.Skip("the tests on a real cluster are left out with -short")
	}
	if err := cluster.CheckHost(); err != nil {
		t.Skip("no real cluster on this machine:", err)
	}
	return Config{Name: "chaos", Seed: rand.Uint64N(1 << 32), Log: stack.Progress(t.Output())}
}

func check(t *testing.T, report fmt.Stringer, ok bool, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
	if !ok {
		t.Error("promises were broken")
	}
}

// A longer one is "make chaos".
func TestPromisesHoldWhilePartsAreKilled(t *testing.T) {
	report, err := Run(t.Context(), RunConfig{Config: config(t), Duration: 2 * time.Minute, Nodes: 3})
	check(t, report, report.OK(), err)
	if report.Pods == 0 || report.Faults == 0 {
		t.Errorf("%d pods ran and %d parts were killed: nothing was tried", report.Pods, report.Faults)
	}
}

// A larger one is "make failover".
func TestNextLeaderGoesOnWithABurst(t *testing.T) {
	report, err := Failover(t.Context(), FailoverConfig{Config: config(t), Pods: 60})
	check(t, report, report.OK(), err)
}
