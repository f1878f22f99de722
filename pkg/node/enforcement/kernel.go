package enforcement

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Driver limits the GPU memory of control groups (nvml.Limits). Dir is the full path of a group's directory, amounts are bytes.
type Driver interface {
	Set(ctx context.Context, id gpu.UUID, dir string, soft, hard uint64) error
	// Get is not ok for a group that has no limits.
	Get(ctx context.Context, id gpu.UUID, dir string) (soft, hard uint64, ok bool, err error)
}

const (
	mib = 1 << 20

	// unlimited is NVML_DEVICE_MEMORY_LIMIT_MAX.
	unlimited = 1<<64 - 1

	// maxPage is the largest page that drivers count memory in.
	maxPage = 2 * mib
)

// within reports whether two limits are equal in whole pages.
func within(read, set uint64) bool { return read <= set && set-read < maxPage }

// kernel enforces the level of that name.
type kernel struct {
	driver  Driver
	cgroups Cgroups

	turn   chan struct{}           // of the one change at a time, because settle adds up limits. It guards the next two
	limits map[string]limit        // of running containers, by the directories of their groups
	cut    map[string][]gpu.Device // by the directories of groups that may get a limit after nobody waits for it

	mu      sync.Mutex // guards the rest
	tested  result
	testing chan struct{} // closed when the test that runs has ended; nil: none runs
}

// A result is the outcome of a test.
type result struct {
	of   string // the driver and the GPUs
	at   time.Time
	err  error              // of all GPUs
	gpus map[gpu.UUID]error // of some, where others have their limits
}

func newKernel(driver Driver, cgroups Cgroups) *kernel {
	return &kernel{driver: driver, cgroups: cgroups, turn: make(chan struct{}, 1), limits: make(map[string]limit), cut: make(map[string][]gpu.Device)}
}

// errBusy is the error of a call that got no turn, or no answer: it proves nothing about the driver.
var errBusy = errors.New("the driver is busy with other limits")

// do calls f when its turn comes, but waits no longer than the context: the container runtime does not either, and starts a
// container without an answer.
func (k *kernel) do(ctx context.Context, f func() error) error {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
		return f()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errBusy, ctx.Err())
	}
}

// limit is a container's memory on each of its GPUs.
type limit struct {
	gpus  []gpu.UUID
	bytes uint64
}

// hold sets a container's limit on each of its GPUs. If one fails, no GPU keeps memory reserved.
func (k *kernel) hold(ctx context.Context, group string, devices []gpu.Device, limitMiB int64) error {
	if limitMiB <= 0 || limitMiB > unlimited/2/mib {
		return fmt.Errorf("a limit of %d MiB", limitMiB)
	}
	dir, err := k.cgroups.dir(group)
	if err != nil {
		return err
	}
	return k.do(ctx, func() error {
		l := limit{bytes: uint64(limitMiB) * mib}
		for _, d := range devices {
			err := k.set(ctx, d.UUID, dir, l.bytes)
			switch {
			case err != nil && ctx.Err() != nil: // the driver may set it yet
				k.cut[dir] = devices
				return fmt.Errorf("%w: %w", errBusy, err)
			case err != nil:
				return errors.Join(err, k.free(ctx, dir, devices))
			}
			l.gpus = append(l.gpus, d.UUID)
		}
		k.limits[dir] = l
		delete(k.cut, dir)
		return nil
	})
}

// undo frees reservations of calls whose outcome nobody waited for, unless the container has its limit now.
func (k *kernel) undo(ctx context.Context) error {
	return k.do(ctx, func() error {
		for dir, devices := range k.cut {
			if _, held := k.limits[dir]; !held {
				if err := k.free(ctx, dir, devices); err != nil {
					return err
				}
			}
			delete(k.cut, dir)
		}
		return nil
	})
}

// keep reads the limits of running containers on a GPU, and sets again those that the driver has lost: it forgets them when it
// is loaded again, or a GPU is reset, and the containers run on. Other calls have their turn between two containers.
func (k *kernel) keep(ctx context.Context, id gpu.UUID) error {
	var dirs []string
	err := k.do(ctx, func() error {
		dirs = slices.Sorted(maps.Keys(k.limits))
		return nil
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if err := k.do(ctx, func() error { return k.keepGroup(ctx, id, dir) }); err != nil {
			errs = append(errs, fmt.Errorf("a limit is lost and could not be set again: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (k *kernel) keepGroup(ctx context.Context, id gpu.UUID, dir string) error {
	l := k.limits[dir]
	if !slices.Contains(l.gpus, id) {
		return nil
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		delete(k.limits, dir)
		return nil
	}
	soft, hard, ok, err := k.driver.Get(ctx, id, dir)
	if err == nil && (!ok || !within(soft, l.bytes) || !within(hard, l.bytes)) {
		err = k.set(ctx, id, dir, l.bytes)
	}
	return err
}

// set gives a group one limit, soft and hard, and reads it back. A soft limit below the hard one
// would let MPS end the container's programs for its neighbours; above it there is none.
func (k *kernel) set(ctx context.Context, id gpu.UUID, dir string, bytes uint64) error {
	if err := k.driver.Set(ctx, id, dir, bytes, bytes); err != nil {
		return err
	}
	soft, hard, ok, err := k.driver.Get(ctx, id, dir)
	switch {
	case err != nil:
		return err
	case !ok || !within(soft, bytes) || !within(hard, bytes):
		return fmt.Errorf("GPU %s, %s: a limit of %d bytes was set and reads back as %d, soft %d", id, dir, bytes, hard, soft)
	}
	return nil
}

// release frees the reservations of a container that ends, and those that earlier containers left.
func (k *kernel) release(ctx context.Context, group string, devices []gpu.Device) error {
	dir, err := k.cgroups.dir(group)
	if err != nil {
		return err
	}
	return k.do(ctx, func() error {
		delete(k.limits, dir)
		return errors.Join(k.free(ctx, dir, devices), k.settleAll(ctx, devices...))
	})
}

// free sets a group's soft limits to 0. The hard ones remain, for a program that still runs. A group that is gone has none;
// settle finds the reservations that it left.
func (k *kernel) free(ctx context.Context, dir string, devices []gpu.Device) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var errs []error
	for _, d := range devices {
		soft, hard, ok, err := k.driver.Get(ctx, d.UUID, dir)
		if err == nil && ok && soft > 0 {
			err = k.driver.Set(ctx, d.UUID, dir, 0, hard)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// settleAll frees the reservations that groups which are gone have left above them.
func (k *kernel) settleAll(ctx context.Context, devices ...gpu.Device) error {
	pods, err := k.cgroups.pods()
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range devices {
		_, err := k.settle(ctx, d.UUID, pods)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// settle returns the soft limit of a group, and corrects the groups above containers. Such a group should have the sum of the
// containers' soft limits: the driver adds to it when a container gets a limit, and does not subtract when the group is removed.
func (k *kernel) settle(ctx context.Context, id gpu.UUID, dir string) (soft uint64, err error) {
	has, _, ok, err := k.driver.Get(ctx, id, dir)
	if err != nil || !ok || !aboveContainers(dir) {
		return has, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return has, err
	}
	var sum uint64
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		below, err := k.settle(ctx, id, filepath.Join(dir, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return has, err
		}
		sum += below
	}
	// The driver has subtracted from here what settle freed below.
	has, hard, ok, err := k.driver.Get(ctx, id, dir)
	if err != nil || !ok || has <= sum {
		return has, err
	}
	return sum, k.driver.Set(ctx, id, dir, sum, hard)
}

const (
	// scratch is the group of the test, below the one of all pods.
	scratch   = "gpumem-selftest"
	testBytes = 64 * mib

	// The result of a test that passed counts for retest, and of one that failed for retry.
	retest = time.Minute
	retry  = 10 * time.Second
	// testPatience bounds a test. The result before it stands until it ends.
	testPatience = 30 * time.Second
)

// proven tests each GPU, and returns those on which the driver does not hold control groups of pods to limits, or an error
// when it does so on none. The test also restores lost limits of containers, and gives back the reservations of ended
// ones. The context ends the wait, and not the test: an interrupted wait is no answer.
func (k *kernel) proven(ctx context.Context, driver string, devices []gpu.Device) (map[gpu.UUID]error, error) {
	words := []string{driver}
	for _, d := range devices {
		words = append(words, string(d.UUID))
	}
	of := strings.Join(words, " ")
	for {
		last, ended := k.begun(ctx, of, devices)
		if ended == nil {
			return last.gpus, last.err
		}
		select {
		case <-ended:
		case <-ctx.Done():
			if last.of == of && time.Since(last.at) < retest+testPatience {
				return last.gpus, last.err
			}
			return nil, errors.New("the test of the driver has not ended yet")
		}
	}
}

// begun returns the last result, and starts a test unless that result is new enough or a test runs. The channel is closed
// when the test has ended.
func (k *kernel) begun(ctx context.Context, of string, devices []gpu.Device) (last result, ended <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	good := retest
	if k.tested.err != nil || len(k.tested.gpus) > 0 {
		good = retry
	}
	switch {
	case k.tested.of == of && time.Since(k.tested.at) < good:
		return k.tested, nil
	case k.testing == nil:
		k.testing = make(chan struct{})
		go k.run(context.WithoutCancel(ctx), of, devices)
	}
	return k.tested, k.testing
}

func (k *kernel) run(ctx context.Context, of string, devices []gpu.Device) {
	ctx, cancel := context.WithTimeout(ctx, testPatience)
	defer cancel()
	gpus, err := k.test(ctx, devices)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tested = result{of: of, at: time.Now(), err: err, gpus: gpus}
	close(k.testing)
	k.testing = nil
}

// test sets a limit of each GPU for a group next to those of pods, reads it back, and removes it.
func (k *kernel) test(ctx context.Context, devices []gpu.Device) (failed map[gpu.UUID]error, err error) {
	pods, err := k.cgroups.pods()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(pods, scratch)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { // of a test that was cut short
		return nil, err
	}
	failed = make(map[gpu.UUID]error)
	for _, d := range devices {
		if err := k.do(ctx, func() error { return k.testGPU(ctx, d.UUID, dir) }); err != nil {
			failed[d.UUID] = fmt.Errorf("the driver limits no control group: %w", err)
		}
	}
	if err := os.Remove(dir); err != nil {
		return nil, err
	}
	if err := k.undo(ctx); err != nil {
		return nil, err
	}
	var all []error
	for _, d := range devices {
		if failed[d.UUID] == nil {
			settle := func() error { return k.settleAll(ctx, d) }
			if err := errors.Join(k.keep(ctx, d.UUID), k.do(ctx, settle)); err != nil {
				failed[d.UUID] = err
			}
		}
		all = append(all, failed[d.UUID])
	}
	if len(failed) == len(devices) {
		return nil, errors.Join(all...)
	}
	return failed, nil
}

func (k *kernel) testGPU(ctx context.Context, id gpu.UUID, dir string) error {
	err := k.set(ctx, id, dir, testBytes)
	if cleared := k.driver.Set(ctx, id, dir, 0, unlimited); err == nil {
		err = cleared
	}
	return err
}
