package enforcement

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/gpu"
)

const interval = 2 * time.Second

// host is a node whose facts a test changes.
type host struct {
	mu      sync.Mutex
	facts   Facts
	changed chan struct{}
}

func newHost() *host { return &host{facts: proven(), changed: make(chan struct{})} }

func (h *host) Inventory() (gpu.Inventory, string, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	inv := gpu.Inventory{UnitMiB: 1024, DriverVersion: h.facts.Driver, Devices: slices.Clone(h.facts.Devices)}
	for i := range inv.Devices {
		inv.Devices[i].Healthy = true
	}
	return inv, "", h.changed
}

func (h *host) probes() Probes {
	read := func() Facts {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.facts
	}
	return Probes{
		Regions: func() ([]Region, error) { f := read(); return f.Regions, f.Dmem },
		Hook:    func() error { return read().Hook },
		NRI:     func() error { return read().NRI },
		MPS:     func(context.Context) (bool, error) { f := read(); return f.Accounting, f.MPS },
	}
}

func (h *host) set(change func(*Facts)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.facts)
}

// plug changes the GPUs, as the prober tells.
func (h *host) plug(change func(*Facts)) {
	h.set(change)
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.changed)
	h.changed = make(chan struct{})
}

// run runs a node over a host in a bubble until the test ends.
func run(t *testing.T, mode Mode, h *host) *Node {
	t.Helper()
	n := NewNode(mode, interval, h, h.probes(), zap.NewNop())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	<-n.Looked()
	return n
}

func wantLevel(t *testing.T, n *Node, level gpu.Enforcement, weaker, unhealthy string) {
	t.Helper()
	inv, _, _ := n.Inventory()
	if inv.Enforcement != level || inv.Weaker != weaker {
		t.Errorf("level %s, weaker because of %q; want %s, %q", inv.Enforcement, inv.Weaker, level, weaker)
	}
	for _, d := range inv.Devices {
		if d.Unhealthy != unhealthy || d.Healthy != (unhealthy == "") {
			t.Errorf("GPU %d: healthy %t, %q; want %q", d.Index, d.Healthy, d.Unhealthy, unhealthy)
		}
	}
}

func TestNodeThatMayHaveAny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		n := run(t, Auto, h)
		wantLevel(t, n, gpu.EnforcementKernel, "", "")

		_, _, changed := n.Inventory()
		h.set(func(f *Facts) { f.MPS = errors.New("the daemon is dead") })
		if err := n.Ready(t.Context(), gpu.EnforcementMPS); err == nil {
			t.Error("ready for a container with limits, and the daemon is dead")
		}
		if err := n.Ready(t.Context(), gpu.EnforcementAdvisory); err != nil {
			t.Errorf("not ready for a container without: %v", err)
		}
		<-changed
		wantLevel(t, n, gpu.EnforcementAdvisory, "mps: the daemon is dead; kernel: the daemon is dead", "")

		h.set(func(f *Facts) { f.MPS, f.Accounting = nil, false })
		time.Sleep(interval)
		synctest.Wait()
		wantLevel(t, n, gpu.EnforcementMPS, "kernel: the MPS daemon does not account for memory", "")
		if err := n.Ready(t.Context(), gpu.EnforcementMPS); err != nil {
			t.Errorf("not ready again: %v", err)
		}

		h.plug(func(f *Facts) { f.Devices[0].ComputeCapability = "6.1" })
		synctest.Wait()
		if inv, _, _ := n.Inventory(); inv.Enforcement != gpu.EnforcementAdvisory {
			t.Errorf("level %s on a GPU that is too old", inv.Enforcement)
		}
	})
}

func TestNodeThatIsToldItsLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		n := run(t, "mps", h)
		wantLevel(t, n, gpu.EnforcementMPS, "", "") // and no more

		h.set(func(f *Facts) { f.MPS = errors.New("the daemon is dead") })
		time.Sleep(interval)
		synctest.Wait()
		wantLevel(t, n, gpu.EnforcementAdvisory, "mps: the daemon is dead", "enforcement mps: the daemon is dead")

		h.set(func(f *Facts) { f.MPS = nil })
		time.Sleep(interval)
		synctest.Wait()
		wantLevel(t, n, gpu.EnforcementMPS, "", "")
	})
	synctest.Test(t, func(t *testing.T) {
		n := run(t, "advisory", newHost())
		wantLevel(t, n, gpu.EnforcementAdvisory, "", "")
	})
}

func TestWhoWritesTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		n := run(t, Auto, h)
		if _, writes := n.Writes(h.facts.Devices); writes {
			t.Error("the plugin writes, and the toolkit has its hook")
		}
		h.set(func(f *Facts) { f.Hook = errors.New("no hook") })
		time.Sleep(interval)
		synctest.Wait()
		regions, writes := n.Writes(h.facts.Devices)
		if !writes || len(regions) != 1 || regions[0].Name != region {
			t.Errorf("the plugin writes: %t, into %v", writes, regions)
		}
	})
}
