package enforcement

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

const interval = 2 * time.Second

// host is a node whose facts a test changes.
type host struct {
	mu      sync.Mutex
	root    string // of the control groups
	facts   Facts
	changed chan struct{}
}

func newHost(t *testing.T) *host {
	h := &host{root: t.TempDir(), facts: proven(), changed: make(chan struct{})}
	write(t, "cpu dmem\n", h.root, "cgroup.controllers")
	write(t, region+" 85899345920\n", h.root, "dmem.capacity")
	return h
}

func (h *host) Inventory() (gpu.Inventory, string, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	inv := gpu.Inventory{UnitMiB: 1024, DriverVersion: h.facts.Driver, Devices: slices.Clone(h.facts.Devices)}
	return inv, "", h.changed
}

func (h *host) probes() Probes {
	read := func() Facts {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.facts
	}
	return Probes{
		Cgroups: Cgroups{Root: h.root},
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
		if d.Status.Causes() != unhealthy {
			t.Errorf("GPU %d: %q; want %q", d.Index, d.Status.Causes(), unhealthy)
		}
	}
}

func TestNodeThatMayHaveAny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
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
		h := newHost(t)
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
		n := run(t, "advisory", newHost(t))
		wantLevel(t, n, gpu.EnforcementAdvisory, "", "")
	})
}

func TestWhoWritesTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		for _, file := range []string{"dmem.max", "dmem.min"} {
			write(t, "", h.root, "pod/c1", file)
		}
		limit := filepath.Join(h.root, "pod/c1/dmem.max")
		n := run(t, Auto, h)
		hold := func() error { return n.Hold("/pod/c1", h.facts.Devices, 3072) }

		if err := hold(); err == nil || !strings.Contains(err.Error(), "NVIDIA's hook has not set it") {
			t.Errorf("the toolkit has its hook, which does nothing: %v", err)
		}
		time.Sleep(interval)
		synctest.Wait()
		inv, _, _ := n.Inventory()
		if inv.Enforcement != gpu.EnforcementMPS || !strings.Contains(inv.Weaker, "a limit could not be set") {
			t.Errorf("level %s (%s) after a limit that was not set", inv.Enforcement, inv.Weaker)
		}
		if err := n.Ready(t.Context(), gpu.EnforcementKernel); err != nil {
			t.Errorf("the container cannot try again: %v", err)
		}
		write(t, region+" 3221225472\n", limit)
		if err := hold(); err != nil {
			t.Errorf("the hook has set it: %v", err)
		}
		time.Sleep(interval)
		synctest.Wait()
		wantLevel(t, n, gpu.EnforcementKernel, "", "")

		h.set(func(f *Facts) { f.Hook = errors.New("no hook") })
		write(t, "", limit)
		time.Sleep(interval)
		synctest.Wait()
		if err := hold(); err != nil {
			t.Errorf("the plugin writes it: %v", err)
		}
		if text, err := os.ReadFile(limit); string(text) != region+" 3221225472\n" {
			t.Errorf("dmem.max has %q, %v", text, err)
		}
		if err := n.Hold("/pod/gone", h.facts.Devices, 3072); err == nil {
			t.Error("a limit was written to a control group that is not there")
		}
		time.Sleep(forget + interval)
		synctest.Wait()
		wantLevel(t, n, gpu.EnforcementKernel, "", "") // the pod is gone, and nobody tries again
		if err := n.Hold("/pod/c1", []gpu.Device{{PCI: "00000000:99:00.0"}}, 3072); err == nil {
			t.Error("a GPU without a region was held to a limit")
		}
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
