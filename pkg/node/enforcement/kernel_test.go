package enforcement

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// driver limits control groups like NVIDIA's driver with dmem: it adds a group's reservation to all groups
// above it (NVIDIA, "MPS v3 Memory Partitioning").
type driver struct {
	root string

	mu       sync.Mutex
	limits   map[string][2]uint64 // soft and hard limit, by GPU and group
	refuses  error                // error of Set
	forgets  bool                 // Set has no effect
	unhanded string               // groups below this one have no limits, as if +dmem were missing
	stuck    string               // directory of a group without settable limits
}

// newDriver creates a tree with the kubelet's groups and two containers' groups.
func newDriver(t *testing.T) *driver {
	t.Helper()
	d := &driver{root: t.TempDir(), limits: make(map[string][2]uint64)}
	for _, group := range []string{"kubepods/burstable/poda/c1", "kubepods/burstable/podb/c1/inner"} {
		if err := os.MkdirAll(filepath.Join(d.root, group), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(d.root, "cgroup.controllers"), []byte("cpu dmem\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *driver) change(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *driver) Set(_ context.Context, id gpu.UUID, dir string, soft, hard uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	switch {
	case d.stuck == dir:
		return errors.New("stuck")
	case d.refuses != nil:
		return d.refuses
	case d.unhanded != "" && strings.HasPrefix(dir, filepath.Join(d.root, d.unhanded)+"/"):
		return errors.New("no limits here")
	case d.forgets:
		return nil
	}
	was := d.limits[string(id)+" "+dir]
	d.limits[string(id)+" "+dir] = [2]uint64{soft, hard}
	for above := filepath.Dir(dir); above != d.root; above = filepath.Dir(above) {
		l, ok := d.limits[string(id)+" "+above]
		if !ok {
			l[1] = unlimited
		}
		l[0] += soft - was[0]
		d.limits[string(id)+" "+above] = l
	}
	return nil
}

func (d *driver) Get(_ context.Context, id gpu.UUID, dir string) (soft, hard uint64, ok bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.limits[string(id)+" "+dir]
	return l[0], l[1], ok, nil
}

// reserved returns the reservations on GPU-a, in MiB, by group. It omits groups without a reservation.
func (d *driver) reserved() map[string]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string]uint64)
	for key, l := range d.limits {
		if group, ok := strings.CutPrefix(key, "GPU-a "+d.root+"/"); ok && l[0] > 0 {
			out[group] = l[0] / mib
		}
	}
	return out
}

func (d *driver) wantReserved(t *testing.T, want map[string]uint64) {
	t.Helper()
	if diff := cmp.Diff(want, d.reserved()); diff != "" {
		t.Errorf("reserved (-want +got):\n%s", diff)
	}
}

// end removes the control group of a container.
func (d *driver) end(t *testing.T, group string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(d.root, group)); err != nil {
		t.Fatal(err)
	}
	d.change(func() { delete(d.limits, "GPU-a "+filepath.Join(d.root, group)) })
}

const c1, c2 = "kubepods/burstable/poda/c1", "kubepods/burstable/podb/c1"

// TestAContainerHasItsLimitOrTheNodeIsNotKernel verifies that a limit that was not set, or does not read back,
// lowers the node's level until another limit succeeds, or for limitErrTTL.
func TestAContainerHasItsLimitOrTheNodeIsNotKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		n := run(t, Auto, h)
		hold := func(group string) error { return n.SetLimit(t.Context(), group, h.facts.Devices, 3072) }
		look := func() {
			time.Sleep(interval)
			synctest.Wait()
		}
		if err := hold("/" + c1); err != nil {
			t.Fatal(err)
		}
		if soft, hard, ok, _ := h.driver.Get(t.Context(), "GPU-a", filepath.Join(h.driver.root, c1)); soft != 3<<30 || hard != 3<<30 || !ok {
			t.Errorf("soft %d, hard %d, %t: want both 3 GiB", soft, hard, ok)
		}
		for says, change := range map[string]func(on bool){
			"not today": func(on bool) { h.driver.refuses = map[bool]error{true: errors.New("not today")}[on] },
			"3221225472 bytes was set and reads back as 0, soft 0": func(on bool) { h.driver.forgets = on },
		} {
			h.driver.change(func() { change(true) })
			if err := hold("/" + c2); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, want %q", err, says)
			}
			look()
			if inv, _, _ := n.Inventory(); inv.Enforcement != gpu.EnforcementMPS || !strings.Contains(inv.Weaker, "kernel: a limit could not be set: ") {
				t.Errorf("level %s (%s) after a limit that was not set", inv.Enforcement, inv.Weaker)
			}
			h.driver.change(func() { change(false) })
			if err := n.Ready(t.Context(), gpu.EnforcementKernel, nil); err != nil {
				t.Errorf("the container cannot try again: %v", err)
			}
			if err := hold("/" + c2); err != nil {
				t.Error(err)
			}
			look()
			wantLevel(t, n, gpu.EnforcementKernel, "", "")
			if err := n.Release(t.Context(), "/"+c2); err != nil {
				t.Error(err)
			}
			h.driver.change(func() { delete(h.driver.limits, "GPU-a "+filepath.Join(h.driver.root, c2)) })
		}
		if err := hold("/kubepods/podx/gone"); err == nil {
			t.Error("a control group that is not there has a limit")
		}
		for _, group := range []string{"", "/", "../x"} {
			if err := hold(group); err == nil {
				t.Errorf("%q has a limit", group)
			}
		}
		time.Sleep(limitErrTTL + interval)
		synctest.Wait()
		wantLevel(t, n, gpu.EnforcementKernel, "", "") // the pod is gone, and nobody retries
	})
}

// TestTheLargestLimit: a limit is at most half of the driver's value for "no limit", so that no sum of two limits
// overflows.
func TestTheLargestLimit(t *testing.T) {
	d := newDriver(t)
	k := newKernel(d, Cgroups{Root: d.root})
	const most = unlimited / 2 / mib
	for limitMiB, want := range map[int64]bool{-1: false, 0: false, 1: true, most: true, most + 1: false} {
		if err := k.setLimits(t.Context(), c1, []gpu.Device{{UUID: "GPU-a"}}, limitMiB); (err == nil) != want {
			t.Errorf("a limit of %d MiB: %v", limitMiB, err)
		}
	}
}

// TestOfTwoGPUsBothAreLimited verifies that a failure on one GPU releases the reservation on the other.
func TestOfTwoGPUsBothAreLimited(t *testing.T) {
	d := newDriver(t)
	k := newKernel(d, Cgroups{Root: d.root})
	two := []gpu.Device{{UUID: "GPU-a"}, {UUID: "GPU-b"}}
	if err := k.setLimits(t.Context(), c1, two, 1024); err != nil {
		t.Fatal(err)
	}
	for _, id := range []gpu.UUID{"GPU-a", "GPU-b"} {
		if _, hard, _, _ := d.Get(t.Context(), id, filepath.Join(d.root, c1)); hard != 1<<30 {
			t.Errorf("%s has a limit of %d", id, hard)
		}
	}
	k.driver = failing{d, "GPU-b"}
	if err := k.setLimits(t.Context(), c2, two, 1024); err == nil {
		t.Error("one GPU has no limit, and the container starts")
	}
	d.wantReserved(t, map[string]uint64{"kubepods": 1024, "kubepods/burstable": 1024, "kubepods/burstable/poda": 1024, c1: 1024})
}

// TestLimitsThatTheDriverLosesAreSetAgain reloads the driver or resets a GPU while a container runs. While
// restoring the limit fails, the node's level is not kernel.
func TestLimitsThatTheDriverLosesAreSetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		n := run(t, Auto, h)
		if err := n.SetLimit(t.Context(), "/"+c1, h.facts.Devices, 3072); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(h.driver.root, c1)
		wantLimit := func(want uint64) {
			t.Helper()
			if soft, hard, _, _ := h.driver.Get(t.Context(), "GPU-a", dir); soft != want || hard != want {
				t.Errorf("soft %d, hard %d: want both %d", soft, hard, want)
			}
		}
		look := func(after time.Duration) {
			time.Sleep(after)
			synctest.Wait()
		}
		h.driver.change(func() { clear(h.driver.limits) })
		look(passedTTL + interval)
		wantLimit(3 << 30)
		wantLevel(t, n, gpu.EnforcementKernel, "", "")

		// After a change of the driver's version, the plugin restores limits immediately.
		h.driver.change(func() { clear(h.driver.limits) })
		h.plug(func(f *Facts) { f.Driver = "615.99" })
		synctest.Wait()
		wantLimit(3 << 30)

		// The plugin also restores a lost soft limit.
		h.driver.change(func() {
			h.driver.limits["GPU-a "+dir] = [2]uint64{0, 3 << 30}
			h.driver.stuck = dir
		})
		look(passedTTL + interval)
		if inv, _, _ := n.Inventory(); inv.Enforcement == gpu.EnforcementKernel || !strings.Contains(inv.Weaker, "a limit is lost and could not be set again") {
			t.Errorf("level %s (%s), and a container has lost its limit", inv.Enforcement, inv.Weaker)
		}
		h.driver.change(func() { h.driver.stuck = "" })
		look(failedTTL + interval)
		wantLimit(3 << 30)
		wantLevel(t, n, gpu.EnforcementKernel, "", "")

		// An ended container does not get its limit again.
		if err := n.Release(t.Context(), "/"+c1); err != nil {
			t.Error(err)
		}
		h.driver.change(func() { clear(h.driver.limits) })
		look(passedTTL + interval)
		wantLimit(0)
	})
}

// failing is a driver that cannot set limits on one GPU.
type failing struct {
	*driver
	id gpu.UUID
}

func (f failing) Set(ctx context.Context, id gpu.UUID, dir string, soft, hard uint64) error {
	if id == f.id {
		return errors.New("not this GPU")
	}
	return f.driver.Set(ctx, id, dir, soft, hard)
}

// asleep is a driver whose Set blocks until its caller's context is done.
type asleep struct {
	*driver
	asked chan struct{}
}

func (a asleep) Set(ctx context.Context, _ gpu.UUID, _ string, _, _ uint64) error {
	a.asked <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

// A container that starts while the driver is busy proves nothing about the driver.
func TestADriverThatIsBusyCanSetLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		n := run(t, Auto, h)
		end := make(chan struct{})
		go func() {
			if err := n.kernel.runExclusive(t.Context(), func() error { <-end; return nil }); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.SetLimit(ctx, "/"+c1, []gpu.Device{{UUID: "GPU-a"}}, 1024); err == nil {
			t.Error("a container has a limit that was not set")
		}
		close(end)
		time.Sleep(interval)
		synctest.Wait()
		wantLevel(t, n, gpu.EnforcementKernel, "", "")
	})
}

// A caller gets an answer before its deadline: the container runtime does not wait for a late one, and starts the
// container.
func TestWhoAsksForALimitWaitsNoLongerThanItSays(t *testing.T) {
	d := asleep{newDriver(t), make(chan struct{}, 8)}
	k := newKernel(d, Cgroups{Root: d.root})
	devices := []gpu.Device{{UUID: "GPU-a"}}
	testing, end := context.WithCancel(t.Context())
	proven := make(chan error, 1)
	go func() {
		_, err := k.testResult(testing, "615", devices)
		proven <- err
	}()
	<-d.asked
	answered := make(chan error, 2)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		answered <- k.setLimits(ctx, "kubepods/burstable/poda/c1", devices, 1024)
		answered <- k.release(ctx, "kubepods/burstable/poda/c1", devices)
	}()
	for range 2 {
		select {
		case err := <-answered:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("no answer while the driver is tested")
		}
	}
	end()
	<-proven
}

// TestNothingIsReservedForContainersThatEnded covers reported ends, and control groups that were removed first,
// also while no plugin ran.
func TestNothingIsReservedForContainersThatEnded(t *testing.T) {
	devices := []gpu.Device{{UUID: "GPU-a"}}
	one := map[string]uint64{"kubepods": 1024, "kubepods/burstable": 1024, "kubepods/burstable/podb": 1024, c2: 1024}
	for name, end := range map[string]func(t *testing.T, d *driver, k *kernel){
		"its control group is there": func(t *testing.T, _ *driver, k *kernel) {
			if err := k.release(t.Context(), c1, devices); err != nil {
				t.Error(err)
			}
		},
		"its control group is gone": func(t *testing.T, d *driver, k *kernel) {
			d.end(t, c1)
			if err := k.release(t.Context(), c1, devices); err != nil {
				t.Error(err)
			}
		},
		"its pod is gone, and no plugin ran": func(t *testing.T, d *driver, k *kernel) {
			d.end(t, c1)
			d.end(t, filepath.Dir(c1))
			*k = *newKernel(d, k.cgroups)
			if _, err := k.testResult(t.Context(), "615", devices); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver(t)
			k := newKernel(d, Cgroups{Root: d.root})
			for group, limitMiB := range map[string]int64{c1: 3072, c2: 1024} {
				if err := k.setLimits(t.Context(), group, devices, limitMiB); err != nil {
					t.Fatal(err)
				}
			}
			// The container's program has created groups below its own. The plugin ignores their limits.
			if err := d.Set(t.Context(), "GPU-a", filepath.Join(d.root, c2, "inner"), 0, 512*mib); err != nil {
				t.Fatal(err)
			}
			end(t, d, k)
			d.wantReserved(t, one)
		})
	}
	t.Run("a program that still runs keeps its limit", func(t *testing.T) {
		d := newDriver(t)
		k := newKernel(d, Cgroups{Root: d.root})
		if err := errors.Join(k.setLimits(t.Context(), c1, devices, 1024), k.release(t.Context(), c1, devices)); err != nil {
			t.Fatal(err)
		}
		if _, hard, _, _ := d.Get(t.Context(), "GPU-a", filepath.Join(d.root, c1)); hard != 1<<30 {
			t.Errorf("its limit is %d", hard)
		}
	})
}

// TestANodeIsKernelOnceALimitWasReadBack verifies that level kernel requires a limit that reads back, in a group
// next to the pods' groups.
func TestANodeIsKernelOnceALimitWasReadBack(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(d *driver)
		says  string
	}{
		"it limits":                    {func(*driver) {}, ""},
		"no right to set":              {func(d *driver) { d.refuses = errors.New("no permission") }, "the driver limits no control group: no permission"},
		"what is set is not there":     {func(d *driver) { d.forgets = true }, "reads back as 0"},
		"the kubelet hands no dmem on": {func(d *driver) { d.unhanded = "kubepods" }, "no limits here"},
		"no control groups of pods":    {func(d *driver) { _ = os.Rename(filepath.Join(d.root, "kubepods"), filepath.Join(d.root, "other")) }, "kubepods is not below"},
		"a test that was cut short":    {func(d *driver) { _ = os.Mkdir(filepath.Join(d.root, "kubepods", testGroup), 0o755) }, ""},
		"a cgroup root of the kubelet's": {func(d *driver) {
			_ = os.Mkdir(filepath.Join(d.root, "kubelet.slice"), 0o755)
			_ = os.Rename(filepath.Join(d.root, "kubepods"), filepath.Join(d.root, "kubelet.slice", "kubelet-kubepods.slice"))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t)
				h.set(func(f *Facts) { f.MPS = errors.New("none") })
				tc.spoil(h.driver)
				n := run(t, Auto, h)
				inv, _, _ := n.Inventory()
				if (inv.Enforcement == gpu.EnforcementKernel) != (tc.says == "") || !strings.Contains(inv.Weaker, tc.says) {
					t.Errorf("level %s (%s), want %q", inv.Enforcement, inv.Weaker, tc.says)
				}
				left, _ := filepath.Glob(filepath.Join(h.driver.root, "*", testGroup))
				if len(left) > 0 || len(h.driver.reserved()) > 0 {
					t.Errorf("the test has left %v, reserved %v", left, h.driver.reserved())
				}
				h.driver.change(func() { h.driver.refuses = errors.New("no more") })
				time.Sleep(passedTTL + 2*interval)
				synctest.Wait()
				if inv, _, _ := n.Inventory(); inv.Enforcement == gpu.EnforcementKernel {
					t.Error("what was proven once is not proven again")
				}
			})
		})
	}
}

func TestWithin(t *testing.T) {
	const set = 3 << 30
	for read, want := range map[uint64]bool{set: true, set - 4096: true, set - maxPage: false, set + 1: false, 0: false, unlimited: false} {
		if within(read, set) != want {
			t.Errorf("%d for %d: want %t", read, uint64(set), want)
		}
	}
}

// timed is a driver with a duration for each call.
type timed struct {
	*driver
	takes time.Duration
}

func (t timed) wait(ctx context.Context) error {
	select {
	case <-time.After(t.takes):
		return nil
	case <-ctx.Done():
		return errors.New("NVML does not answer")
	}
}

func (t timed) Set(ctx context.Context, id gpu.UUID, dir string, soft, hard uint64) error {
	if err := t.wait(ctx); err != nil {
		return err
	}
	return t.driver.Set(ctx, id, dir, soft, hard)
}

func (t timed) Get(ctx context.Context, id gpu.UUID, dir string) (soft, hard uint64, ok bool, err error) {
	if err := t.wait(ctx); err != nil {
		return 0, 0, false, err
	}
	return t.driver.Get(ctx, id, dir)
}

// TestATestThatIsCutShortSaysNothingOfTheDriver runs a test that takes longer than a container's start may
// wait, on a node with 8 GPUs and 120 containers. The start succeeds, other containers get their limits
// meanwhile, and the node keeps its level.
func TestATestThatIsCutShortSaysNothingOfTheDriver(t *testing.T) {
	h := newHost(t)
	var devices []gpu.Device
	for i := range 8 {
		d := h.facts.Devices[0]
		d.UUID, d.Index = gpu.UUID(fmt.Sprintf("GPU-%d", i)), i
		devices = append(devices, d)
	}
	h.facts.Devices, h.facts.MPS = devices, errors.New("none")
	const containers = 120
	for i := range containers {
		if err := os.MkdirAll(filepath.Join(h.driver.root, fmt.Sprintf("kubepods/burstable/pod%d/c", i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(testTimeout) })
		probes := h.probes()
		probes.Driver = timed{h.driver, time.Millisecond}
		n := NewLevelFilter(Auto, interval, h, probes, zap.NewNop())
		hold := func(i int) error {
			ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			defer cancel()
			return n.SetLimit(ctx, fmt.Sprintf("/kubepods/burstable/pod%d/c", i), devices[i%8:i%8+1], 1024)
		}
		for i := range containers - 1 {
			if err := hold(i); err != nil {
				t.Fatal(err)
			}
		}
		n.Update(t.Context(), n.addLevel)
		wantLevel(t, n, gpu.EnforcementKernel, "", "")
		time.Sleep(passedTTL)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.Ready(ctx, gpu.EnforcementKernel, devices[:1]); err != nil {
			t.Errorf("a container is refused, though the driver is well: %v", err)
		}
		if ctx.Err() == nil {
			t.Error("the test has ended in time: it is no test of one that is cut short")
		}
		if err := hold(containers - 1); err != nil {
			t.Errorf("a container has no limit while the driver is tested: %v", err)
		}
		n.Update(t.Context(), n.addLevel)
		wantLevel(t, n, gpu.EnforcementKernel, "", "")
	})
}

// TestALimitThatNobodyWaitedFor verifies that the plugin releases a limit of an abandoned call, unless the
// container has the limit by now. Such a call does not count as a failure.
func TestALimitThatNobodyWaitedFor(t *testing.T) {
	for again, want := range map[bool]map[string]uint64{
		false: {}, true: {"kubepods": 1024, "kubepods/burstable": 1024, "kubepods/burstable/poda": 1024, c1: 1024},
	} {
		synctest.Test(t, func(t *testing.T) {
			t.Cleanup(func() { time.Sleep(testTimeout) })
			h := newHost(t)
			h.set(func(f *Facts) { f.MPS = errors.New("none") })
			n := NewLevelFilter(Auto, interval, h, h.probes(), zap.NewNop())
			hold := func(timeout time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				return n.SetLimit(ctx, "/"+c1, h.facts.Devices, 1024)
			}
			n.kernel.driver = late{h.driver}
			if err := hold(time.Second); err == nil {
				t.Fatal("the call was cut short")
			}
			n.kernel.driver = h.driver
			if len(h.driver.reserved()) == 0 {
				t.Fatal("the late call has reserved nothing")
			}
			if again {
				if err := hold(time.Second); err != nil {
					t.Fatal(err)
				}
			}
			n.Update(t.Context(), n.addLevel)
			wantLevel(t, n, gpu.EnforcementKernel, "", "")
			h.driver.wantReserved(t, want)
		})
	}
}

// late is a driver that sets limits after its caller has given up.
type late struct{ *driver }

func (l late) Set(ctx context.Context, id gpu.UUID, dir string, soft, hard uint64) error {
	<-ctx.Done()
	_ = l.driver.Set(ctx, id, dir, soft, hard)
	return errors.New("NVML does not answer")
}

// TestOneGPUThatIsNotLimited makes one GPU unhealthy. The other GPUs keep their level, with the kernel and with
// MPS.
func TestOneGPUThatIsNotLimited(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Facts)
		level  gpu.Enforcement
	}{
		"the driver sets no limit on it": {func(f *Facts) { f.MPS = errors.New("none") }, gpu.EnforcementKernel},
		"the MPS daemon does not serve it": {func(f *Facts) {
			f.NRI, f.MPSGPUs = errors.New("no NRI"), []int{0}
		}, gpu.EnforcementMPS},
	} {
		for _, mode := range []Mode{Auto, Mode(tc.level)} {
			t.Run(name+" "+string(mode), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHost(t)
					h.set(func(f *Facts) {
						b := f.Devices[0]
						b.UUID, b.Index = "GPU-b", 1
						f.Devices = append(f.Devices, b)
						tc.change(f)
					})
					probes := h.probes()
					probes.Driver = failing{h.driver, "GPU-b"}
					n := NewLevelFilter(mode, interval, h, probes, zap.NewNop())
					n.Update(t.Context(), n.addLevel)
					inv, _, _ := n.Inventory()
					if inv.Enforcement != tc.level || !inv.Devices[0].Status.TakesPods() || inv.Devices[1].Status.TakesPods() {
						t.Errorf("level %s, GPUs %+v", inv.Enforcement, inv.Devices)
					}
					for i, d := range inv.Devices {
						if err := n.Ready(t.Context(), tc.level, []gpu.Device{d}); (err == nil) != (i == 0) {
							t.Errorf("GPU %d is ready: %v", i, err)
						}
					}
				})
			})
		}
	}
}

// TestAGroupThatCannotBeReadKeepsItsReservation verifies that an unreadable group does not count as a sum of 0.
func TestAGroupThatCannotBeReadKeepsItsReservation(t *testing.T) {
	d := newDriver(t)
	k := newKernel(d, Cgroups{Root: d.root})
	if err := k.setLimits(t.Context(), c1, []gpu.Device{{UUID: "GPU-a"}}, 1024); err != nil {
		t.Fatal(err)
	}
	want, pod := d.reserved(), filepath.Join(d.root, filepath.Dir(c1))
	if err := errors.Join(os.RemoveAll(pod), os.WriteFile(pod, nil, 0o644)); err != nil { // not a directory
		t.Fatal(err)
	}
	if soft, err := k.reconcileSoftLimit(t.Context(), "GPU-a", pod); err == nil || soft != 1024*mib {
		t.Errorf("reserved %d, %v", soft, err)
	}
	d.wantReserved(t, want)
}
