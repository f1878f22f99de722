package enforcement

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

var gpuA = []gpu.Device{{UUID: "GPU-a"}}

// unreadable is a driver that can read limits of directories only, except of directory dir.
type unreadable struct {
	*driver
	dir string
	err error
}

func (u unreadable) Get(ctx context.Context, id gpu.UUID, dir string) (soft, hard uint64, ok bool, err error) {
	if dir == u.dir {
		return 0, 0, false, u.err
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return 0, 0, false, fmt.Errorf("%s is no control group", dir)
	}
	return u.driver.Get(ctx, id, dir)
}

// TestAChangeThatGetsNoTurn verifies that a change fails if it cannot run before its context is done.
func TestAChangeThatGetsNoTurn(t *testing.T) {
	d := newDriver(t)
	k := newKernel(d, Cgroups{Root: d.root})
	k.lock <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, err := range map[string]error{
		"keep": k.restoreLimits(ctx, "GPU-a"), "undo": k.undoAbandoned(ctx), "hold": k.setLimits(ctx, c1, gpuA, 1), "release": k.release(ctx, c1, gpuA),
	} {
		if !errors.Is(err, errBusy) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestALimitThatCannotBeReadBack verifies that setLimits returns an error for such a limit, and does not record it.
func TestALimitThatCannotBeReadBack(t *testing.T) {
	d := newDriver(t)
	k := newKernel(unreadable{d, filepath.Join(d.root, c1), errors.New("no answer")}, Cgroups{Root: d.root})
	if err := k.setLimits(t.Context(), c1, gpuA, 1024); err == nil || !strings.Contains(err.Error(), "no answer") || len(k.limits) > 0 {
		t.Errorf("%v, limits %v", err, k.limits)
	}
}

// TestAReservationThatCannotBeReleased verifies that the reservation remains recorded until its release succeeds.
func TestAReservationThatCannotBeReleased(t *testing.T) {
	d := newDriver(t)
	k := newKernel(d, Cgroups{Root: d.root})
	if err := k.setLimits(t.Context(), c1, gpuA, 1024); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(d.root, c1)
	delete(k.limits, dir)
	k.abandoned[dir] = gpuA
	d.stuck = dir
	if err := k.undoAbandoned(t.Context()); err == nil || len(k.abandoned) != 1 {
		t.Errorf("%v, to release: %v", err, k.abandoned)
	}
	if _, err := k.test(t.Context(), gpuA); err == nil || !strings.Contains(err.Error(), "stuck") {
		t.Errorf("the test of the driver passes: %v", err)
	}
	d.stuck = ""
	if err := k.undoAbandoned(t.Context()); err != nil || len(k.abandoned) != 0 {
		t.Errorf("%v, to release: %v", err, k.abandoned)
	}
	d.wantReserved(t, map[string]uint64{})
}

// TestARemovedGroupNeedsNoLimit verifies that a limit is not set again after the container's group is gone.
func TestARemovedGroupNeedsNoLimit(t *testing.T) {
	d := newDriver(t)
	k := newKernel(d, Cgroups{Root: d.root})
	if err := k.setLimits(t.Context(), c1, gpuA, 1024); err != nil {
		t.Fatal(err)
	}
	d.end(t, c1)
	if err := k.restoreLimits(t.Context(), "GPU-b"); err != nil || len(k.limits) != 1 {
		t.Errorf("another GPU: %v, limits %v", err, k.limits)
	}
	if err := k.restoreLimits(t.Context(), "GPU-a"); err != nil || len(k.limits) != 0 {
		t.Errorf("%v, limits %v", err, k.limits)
	}
}

// TestReleaseThatFails covers groups that release cannot find.
func TestReleaseThatFails(t *testing.T) {
	d := newDriver(t)
	k := newKernel(d, Cgroups{Root: d.root})
	if err := k.release(t.Context(), "", gpuA); err == nil {
		t.Error("no group is released")
	}
	if err := os.Rename(filepath.Join(d.root, "kubepods"), filepath.Join(d.root, "other")); err != nil {
		t.Fatal(err)
	}
	if err := k.release(t.Context(), c1, gpuA); err == nil || !strings.Contains(err.Error(), "kubepods is not below") {
		t.Errorf("without groups of pods: %v", err)
	}
}

// TestSettleWithAGroupThatFails verifies that reconcileSoftLimit keeps the reservation above an unreadable group,
// counts a removed group as empty, and ignores files.
func TestSettleWithAGroupThatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		err     error
		settles bool
	}{"it cannot be read": {errors.New("no answer"), false}, "it was removed": {fs.ErrNotExist, true}} {
		d := newDriver(t)
		k := newKernel(d, Cgroups{Root: d.root})
		if err := k.setLimits(t.Context(), c1, gpuA, 1024); err != nil {
			t.Fatal(err)
		}
		qos := filepath.Join(d.root, "kubepods/burstable")
		if err := os.WriteFile(filepath.Join(qos, "cgroup.procs"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		k.driver = unreadable{d, filepath.Join(d.root, c1), tc.err}
		soft, err := k.reconcileSoftLimit(t.Context(), "GPU-a", qos)
		if (err == nil) != tc.settles || (soft == 0) != tc.settles {
			t.Errorf("%s: reserved %d, %v", name, soft, err)
		}
	}
}

// TestTheScratchGroup covers a test of the driver that can neither create nor remove its control group (testGroup).
func TestTheScratchGroup(t *testing.T) {
	d := newDriver(t)
	k := newKernel(d, Cgroups{Root: d.root})
	pods := filepath.Join(d.root, "kubepods")
	if err := os.MkdirAll(filepath.Join(pods, testGroup, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := k.test(t.Context(), gpuA); err == nil || !strings.Contains(err.Error(), "remove") {
		t.Errorf("the scratch group stays: %v", err)
	}
	if err := errors.Join(os.RemoveAll(pods), os.WriteFile(pods, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.test(t.Context(), gpuA); err == nil || !strings.Contains(err.Error(), "mkdir") {
		t.Errorf("no scratch group is created: %v", err)
	}
}

// TestHowLongAResultIsValid covers the last moment at which each kind of result is valid. A result of other GPUs,
// or of another driver, is never valid.
func TestHowLongAResultIsValid(t *testing.T) {
	failed := map[gpu.UUID]error{"GPU-b": errors.New("no")}
	for name, tc := range map[string]struct {
		last result
		good time.Duration
	}{
		"passed":         {result{testKey: "615 GPU-a"}, passedTTL},
		"failed on one":  {result{testKey: "615 GPU-a", gpus: failed}, failedTTL},
		"failed on all":  {result{testKey: "615 GPU-a", err: errors.New("no")}, failedTTL},
		"of another GPU": {result{testKey: "615 GPU-b"}, 0},
	} {
		for _, early := range []time.Duration{1, 0} {
			synctest.Test(t, func(t *testing.T) {
				d := asleep{newDriver(t), make(chan struct{}, 8)}
				k := newKernel(d, Cgroups{Root: d.root})
				tc.last.testedAt = time.Now()
				k.tested = tc.last
				time.Sleep(tc.good - early)
				_, ended := k.startTest(t.Context(), "615 GPU-a", gpuA)
				if (ended == nil) != (early > 0 && tc.good > 0) {
					t.Errorf("%s: %s before the end of its time, a new test starts: %t", name, early, ended != nil)
				}
				time.Sleep(2 * testTimeout)
			})
		}
	}
	for _, early := range []time.Duration{1, 0} {
		synctest.Test(t, func(t *testing.T) {
			d := asleep{newDriver(t), make(chan struct{}, 8)}
			k := newKernel(d, Cgroups{Root: d.root})
			k.tested = result{testKey: "615 GPU-a", testedAt: time.Now(), gpus: failed}
			time.Sleep(passedTTL + testTimeout - early)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			gpus, err := k.testResult(ctx, "615", gpuA)
			if (err == nil) != (early > 0) || (len(gpus) == 1) != (early > 0) {
				t.Errorf("while a test runs, %s before the end: %v, %v", early, gpus, err)
			}
			time.Sleep(2 * testTimeout)
		})
	}
}

// TestAJudgementOfANodeThatEnds verifies that addLevel does not log a level from interrupted calls, which prove
// nothing.
func TestAJudgementOfANodeThatEnds(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	h := newHost(t)
	h.set(func(f *Facts) { f.Driver = "580" })
	n := NewLevelFilter(Auto, interval, h, h.probes(), zap.New(core))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	inv, _, _ := h.Inventory()
	n.addLevel(ctx, inv, "")
	if logs.Len() > 0 {
		t.Errorf("logged %v", logs.All())
	}
	n.addLevel(t.Context(), inv, "")
	if logs.FilterMessage("enforcement judged").Len() != 1 {
		t.Errorf("logged %v", logs.All())
	}
}

// TestNoMPSAtLevelAdvisory verifies that containers do not become clients of a working daemon if the administrator
// has configured level advisory.
func TestNoMPSAtLevelAdvisory(t *testing.T) {
	for mode, want := range map[Mode]bool{"advisory": false, "mps": true, "kernel": true, Auto: true} {
		h := newHost(t)
		n := NewLevelFilter(mode, interval, h, h.probes(), zap.NewNop())
		n.Update(t.Context(), n.addLevel)
		if inv, _, _ := n.Inventory(); inv.MPS != want {
			t.Errorf("mode %s: MPS %t", mode, inv.MPS)
		}
	}
}
