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

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

const interval = 2 * time.Second

// host is a node with facts that a test changes.
type host struct {
	mu      sync.Mutex
	driver  *driver
	facts   Facts
	changed chan struct{}
}

func newHost(t *testing.T) *host {
	return &host{driver: newDriver(t), facts: proven(), changed: make(chan struct{})}
}

func (h *host) Inventory() (gpu.Inventory, string, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	inv := gpu.Inventory{UnitMiB: 1024, DriverVersion: h.facts.Driver, Devices: slices.Clone(h.facts.Devices)}
	return inv, "", h.changed
}

// Looked implements inventory.Upstream.
func (h *host) Looked() <-chan struct{} {
	looked := make(chan struct{})
	close(looked)
	return looked
}

func (h *host) probes() Probes {
	read := func() Facts {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.facts
	}
	return Probes{
		Cgroups:            Cgroups{Root: h.driver.root},
		Driver:             h.driver,
		NRI:                func() error { return read().NRI },
		UnlimitedContainer: func() error { return read().LimitError },
		MPS: func(context.Context, []gpu.Device) ([]int, error) {
			f := read()
			return f.MPSGPUs, f.MPS
		},
	}
}

func (h *host) set(change func(*Facts)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.facts)
}

// plug changes the GPUs and signals the change, like the prober.
func (h *host) plug(change func(*Facts)) {
	h.set(change)
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.changed)
	h.changed = make(chan struct{})
}

// run runs a LevelFilter on a host in a synctest bubble until the test ends.
func run(t *testing.T, mode Mode, h *host) *LevelFilter {
	t.Helper()
	n := NewLevelFilter(mode, interval, h, h.probes(), zap.NewNop())
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

func wantLevel(t *testing.T, n *LevelFilter, level gpu.Enforcement, weaker, unhealthy string) {
	t.Helper()
	inv, _, _ := n.Inventory()
	if inv.Enforcement != level || inv.Weaker != weaker {
		t.Errorf("level %s, weaker because of %q; want %s, %q", inv.Enforcement, inv.Weaker, level, weaker)
	}
	for _, d := range inv.Devices {
		if reasons.Causes(d.Status) != unhealthy {
			t.Errorf("GPU %d: %q; want %q", d.Index, reasons.Causes(d.Status), unhealthy)
		}
	}
}

func TestNodeThatMayHaveAny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		n := run(t, Auto, h)
		wantLevel(t, n, gpu.EnforcementKernel, "", "")

		h.set(func(f *Facts) { f.MPS = errors.New("the daemon is dead") })
		time.Sleep(interval)
		synctest.Wait()
		wantLevel(t, n, gpu.EnforcementKernel, "", "") // level kernel needs no MPS

		_, _, changed := n.Inventory()
		h.set(func(f *Facts) { f.NRI = errors.New("no NRI") })
		if err := n.Ready(t.Context(), gpu.EnforcementMPS, nil); err == nil {
			t.Error("ready for a container with limits, and the daemon is dead")
		}
		if err := n.Ready(t.Context(), gpu.EnforcementAdvisory, nil); err != nil {
			t.Errorf("not ready for a container without: %v", err)
		}
		select {
		case <-changed:
		case <-time.After(2 * interval):
			t.Fatal("the inventory did not change")
		}
		wantLevel(t, n, gpu.EnforcementAdvisory, "mps: the daemon is dead; kernel: no NRI", "")

		h.set(func(f *Facts) { f.MPS = nil })
		time.Sleep(interval)
		synctest.Wait()
		wantLevel(t, n, gpu.EnforcementMPS, "kernel: no NRI", "")
		if err := n.Ready(t.Context(), gpu.EnforcementMPS, nil); err != nil {
			t.Errorf("not ready again: %v", err)
		}

		h.plug(func(f *Facts) { f.Devices[0].ComputeCapability = "6.1" })
		synctest.Wait()
		if inv, _, _ := n.Inventory(); inv.Enforcement != gpu.EnforcementAdvisory {
			t.Errorf("level %s on a GPU that is too old", inv.Enforcement)
		}
	})
}

// TestAContainerThatRunsWithoutItsLimit verifies that the node's level is no longer kernel, but that containers
// with a promised limit start: the runtime calls the plugin for them.
func TestAContainerThatRunsWithoutItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.set(func(f *Facts) { f.LimitError = errors.New("container ns/p/main runs without its limit") })
		n := run(t, Auto, h)
		wantLevel(t, n, gpu.EnforcementMPS, "kernel: container ns/p/main runs without its limit", "")
		if err := n.Ready(t.Context(), gpu.EnforcementKernel, nil); err != nil {
			t.Errorf("another container does not start: %v", err)
		}
		h.set(func(f *Facts) { f.LimitError = nil })
		time.Sleep(interval)
		synctest.Wait()
		wantLevel(t, n, gpu.EnforcementKernel, "", "")
	})
}

func TestNodeThatIsToldItsLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		n := run(t, "mps", h)
		wantLevel(t, n, gpu.EnforcementMPS, "", "") // although kernel works too

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
		n := run(t, "advisory", newHost(t))
		wantLevel(t, n, gpu.EnforcementAdvisory, "", "")
	})
}

func TestGroupOf(t *testing.T) {
	for path, want := range map[string]string{
		"/kubepods/burstable/podx/c1":                           "/kubepods/burstable/podx/c1",
		"kubepods-burstable-pod0f7a_2c.slice:cri-containerd:c1": "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f7a_2c.slice/cri-containerd-c1.scope",
		"kubepods-pod1.slice:crio:c1":                           "/kubepods.slice/kubepods-pod1.slice/crio-c1.scope",
		"":                                                      "",
		"/":                                                     "",
		"a.slice:b":                                             "",
		"a:b:c":                                                 "",
		"a.slice:b:":                                            "",
	} {
		got, err := GroupOf(path)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("GroupOf(%q) = %q, %v; want %q", path, got, err, want)
		}
	}
}

// TestWhoLimitsAContainerIsAsked verifies that Ready queries the daemons of the container's devices, healthy or
// not, and no others.
func TestWhoLimitsAContainerIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		bad, good := gpu.Device{UUID: "MIG-a", Index: 1, ComputeCapability: "8.0", Status: gpu.Unhealthy("XID 94")}, gpu.Device{UUID: "MIG-b", Index: 2, ComputeCapability: "8.0"}
		h.facts.Driver, h.facts.Devices = "580.65", []gpu.Device{bad, good}
		p := h.probes()
		p.MPS = func(_ context.Context, devices []gpu.Device) (limited []int, err error) {
			for _, d := range devices {
				if d.UUID == bad.UUID {
					return nil, errors.New("the supervisor of the MPS daemon has ended")
				}
				limited = append(limited, d.Index)
			}
			return limited, nil
		}
		n := NewLevelFilter(Auto, interval, h, p, zap.NewNop())
		if err := n.Ready(t.Context(), gpu.EnforcementMPS, []gpu.Device{bad}); err == nil {
			t.Error("a container may start whose daemon has ended, on a GPU that is not healthy")
		}
		if err := n.Ready(t.Context(), gpu.EnforcementMPS, []gpu.Device{good}); err != nil {
			t.Errorf("one may not whose daemon is well: %v", err)
		}
	})
}

// TestReadyWithoutDevicesIsAboutAll verifies that without devices, all GPUs of the node must fulfill the level.
func TestReadyWithoutDevicesIsAboutAll(t *testing.T) {
	h := newHost(t)
	n := NewLevelFilter(Auto, interval, h, h.probes(), zap.NewNop())
	if err := n.Ready(t.Context(), gpu.EnforcementMPS, nil); err != nil {
		t.Errorf("all GPUs can have limits: %v", err)
	}
	h.set(func(f *Facts) {
		old := f.Devices[0]
		old.UUID, old.Index, old.ComputeCapability = "GPU-old", 1, "6.1"
		f.Devices = append(slices.Clone(f.Devices), old)
	})
	if err := n.Ready(t.Context(), gpu.EnforcementMPS, nil); err == nil {
		t.Error("a GPU that is too old for MPS has level mps")
	}
}
