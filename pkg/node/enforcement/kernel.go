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

// Driver limits the GPU memory of control groups (nvml.Limits). Parameter dir is the full path of a group's
// directory. Amounts are in bytes.
type Driver interface {
	Set(ctx context.Context, id gpu.UUID, dir string, soft, hard uint64) error
	// Get returns ok == false for a group without limits.
	Get(ctx context.Context, id gpu.UUID, dir string) (soft, hard uint64, ok bool, err error)
}

const (
	mib = 1 << 20

	// unlimited is NVML_DEVICE_MEMORY_LIMIT_MAX.
	unlimited = 1<<64 - 1

	// maxPage is the largest page size of any driver. Limits are rounded down to whole pages.
	maxPage = 2 * mib
)

// within reports whether a limit that was read equals the limit that was set, up to rounding to pages.
func within(read, set uint64) bool { return read <= set && set-read < maxPage }

// kernel implements the level kernel.
type kernel struct {
	driver  Driver
	cgroups Cgroups

	lock      chan struct{}           // held during each change of limits, because reconcileSoftLimit adds them up; guards the next two fields
	limits    map[string]limit        // limits of running containers, by directory of the control group
	abandoned map[string][]gpu.Device // GPUs by directory of groups on which an abandoned call may still set a limit

	mu      sync.Mutex // guards the rest
	tested  result
	testing chan struct{} // closed when the running test ends; nil if none runs
}

// result is the outcome of a test.
type result struct {
	testKey  string // driver version and GPUs that were tested
	testedAt time.Time
	err      error              // failure on all GPUs
	gpus     map[gpu.UUID]error // failures on single GPUs, if the test passed on others
}

func newKernel(driver Driver, cgroups Cgroups) *kernel {
	return &kernel{driver: driver, cgroups: cgroups, lock: make(chan struct{}, 1), limits: make(map[string]limit), abandoned: make(map[string][]gpu.Device)}
}

// errBusy is the error of a call that did not run, or got no answer in time. It proves nothing about the
// driver.
var errBusy = errors.New("the driver is busy with other limits")

// runExclusive calls f when no other change runs, or returns errBusy when the context is done. It must not wait
// longer: if the plugin does not answer in time, the container runtime starts the container.
func (k *kernel) runExclusive(ctx context.Context, f func() error) error {
	select {
	case k.lock <- struct{}{}:
		defer func() { <-k.lock }()
		return f()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errBusy, ctx.Err())
	}
}

// limit is a container's memory limit on each of its GPUs.
type limit struct {
	gpus  []gpu.UUID
	bytes uint64
}

// setLimits sets a container's limit on each of its GPUs. If one GPU fails, setLimits releases the reservations
// on all of them.
func (k *kernel) setLimits(ctx context.Context, group string, devices []gpu.Device, limitMiB int64) error {
	if limitMiB <= 0 || limitMiB > unlimited/2/mib {
		return fmt.Errorf("a limit of %d MiB", limitMiB)
	}
	dir, err := k.cgroups.dir(group)
	if err != nil {
		return err
	}
	return k.runExclusive(ctx, func() error {
		l := limit{bytes: uint64(limitMiB) * mib}
		for _, d := range devices {
			err := k.set(ctx, d.UUID, dir, l.bytes)
			switch {
			case err != nil && ctx.Err() != nil: // the driver may still set it
				k.abandoned[dir] = devices
				return fmt.Errorf("%w: %w", errBusy, err)
			case err != nil:
				return errors.Join(err, k.freeReservations(ctx, dir, devices))
			}
			l.gpus = append(l.gpus, d.UUID)
		}
		k.limits[dir] = l
		delete(k.abandoned, dir)
		return nil
	})
}

// undoAbandoned releases the reservations of abandoned calls, unless the container has its limit by now.
func (k *kernel) undoAbandoned(ctx context.Context) error {
	return k.runExclusive(ctx, func() error {
		for dir, devices := range k.abandoned {
			if _, held := k.limits[dir]; !held {
				if err := k.freeReservations(ctx, dir, devices); err != nil {
					return err
				}
			}
			delete(k.abandoned, dir)
		}
		return nil
	})
}

// restoreLimits reads the limits of running containers on a GPU, and sets lost limits again. The driver loses limits
// when it is reloaded or a GPU is reset, while the containers continue. Between two containers, other changes
// can run.
func (k *kernel) restoreLimits(ctx context.Context, id gpu.UUID) error {
	var dirs []string
	err := k.runExclusive(ctx, func() error {
		dirs = slices.Sorted(maps.Keys(k.limits))
		return nil
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if err := k.runExclusive(ctx, func() error { return k.restoreLimit(ctx, id, dir) }); err != nil {
			errs = append(errs, fmt.Errorf("a limit is lost and could not be set again: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (k *kernel) restoreLimit(ctx context.Context, id gpu.UUID, dir string) error {
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

// set sets one limit of a group, soft and hard, and reads it back. A lower soft limit would let MPS end the
// container's programs in favour of its neighbours, and a soft limit above the hard limit is impossible.
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

// release releases the reservations of a container that ends, and those that earlier containers have left
// behind.
func (k *kernel) release(ctx context.Context, group string, devices []gpu.Device) error {
	dir, err := k.cgroups.dir(group)
	if err != nil {
		return err
	}
	return k.runExclusive(ctx, func() error {
		delete(k.limits, dir)
		return errors.Join(k.freeReservations(ctx, dir, devices), k.reconcileSoftLimits(ctx, devices...))
	})
}

// freeReservations sets a group's soft limits to 0. The hard limits remain, for a program that still runs. It skips a
// removed group; reconcileSoftLimit finds the reservations that such a group left behind.
func (k *kernel) freeReservations(ctx context.Context, dir string, devices []gpu.Device) error {
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

// reconcileSoftLimits releases the reservations that removed groups have left in the groups above them.
func (k *kernel) reconcileSoftLimits(ctx context.Context, devices ...gpu.Device) error {
	pods, err := k.cgroups.pods()
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range devices {
		_, err := k.reconcileSoftLimit(ctx, d.UUID, pods)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// reconcileSoftLimit returns the soft limit of a group, and first corrects the limit of a group above containers.
// That limit should be the sum of the containers' soft limits. The driver increases the sum when a container gets a
// limit, but does not decrease it when the container's group is removed.
func (k *kernel) reconcileSoftLimit(ctx context.Context, id gpu.UUID, dir string) (soft uint64, err error) {
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
		below, err := k.reconcileSoftLimit(ctx, id, filepath.Join(dir, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return has, err
		}
		sum += below
	}
	// By now, the driver has subtracted from this group the amounts that reconcileSoftLimit released in the groups
	// below it.
	has, hard, ok, err := k.driver.Get(ctx, id, dir)
	if err != nil || !ok || has <= sum {
		return has, err
	}
	return sum, k.driver.Set(ctx, id, dir, sum, hard)
}

const (
	// testGroup is the test's control group, next to the pods' groups.
	testGroup = "gpumem-selftest"
	testBytes = 64 * mib

	// A passed test remains valid for passedTTL, a failed one for failedTTL.
	passedTTL = time.Minute
	failedTTL = 10 * time.Second
	// testTimeout bounds a test. The previous result remains valid until the test ends.
	testTimeout = 30 * time.Second
)

// testResult tests each GPU. It returns the GPUs on which the driver does not enforce limits of control groups, or
// an error if it enforces them on none. The test also restores lost limits of containers, and releases the
// reservations of ended containers. When the context is done, testResult stops waiting, but the test continues.
func (k *kernel) testResult(ctx context.Context, driver string, devices []gpu.Device) (map[gpu.UUID]error, error) {
	words := []string{driver}
	for _, d := range devices {
		words = append(words, string(d.UUID))
	}
	testKey := strings.Join(words, " ")
	for {
		last, ended := k.startTest(ctx, testKey, devices)
		if ended == nil {
			return last.gpus, last.err
		}
		select {
		case <-ended:
		case <-ctx.Done():
			if last.testKey == testKey && time.Since(last.testedAt) < passedTTL+testTimeout {
				return last.gpus, last.err
			}
			return nil, errors.New("the test of the driver has not ended yet")
		}
	}
}

// startTest returns the last result. If the result has expired and no test runs, it starts a test. Channel ended is
// closed when the test ends, and nil if the last result is still valid.
func (k *kernel) startTest(ctx context.Context, testKey string, devices []gpu.Device) (last result, ended <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	good := passedTTL
	if k.tested.err != nil || len(k.tested.gpus) > 0 {
		good = failedTTL
	}
	switch {
	case k.tested.testKey == testKey && time.Since(k.tested.testedAt) < good:
		return k.tested, nil
	case k.testing == nil:
		k.testing = make(chan struct{})
		go k.run(context.WithoutCancel(ctx), testKey, devices)
	}
	return k.tested, k.testing
}

func (k *kernel) run(ctx context.Context, testKey string, devices []gpu.Device) {
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	gpus, err := k.test(ctx, devices)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tested = result{testKey: testKey, testedAt: time.Now(), err: err, gpus: gpus}
	close(k.testing)
	k.testing = nil
}

// test sets a limit of each GPU on testGroup, reads the limit back, and removes it. It then restores lost limits of
// containers, and releases leftover reservations.
func (k *kernel) test(ctx context.Context, devices []gpu.Device) (failed map[gpu.UUID]error, err error) {
	pods, err := k.cgroups.pods()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(pods, testGroup)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { // left by an interrupted test
		return nil, err
	}
	failed = make(map[gpu.UUID]error)
	for _, d := range devices {
		if err := k.runExclusive(ctx, func() error { return k.testGPU(ctx, d.UUID, dir) }); err != nil {
			failed[d.UUID] = fmt.Errorf("the driver limits no control group: %w", err)
		}
	}
	if err := os.Remove(dir); err != nil {
		return nil, err
	}
	if err := k.undoAbandoned(ctx); err != nil {
		return nil, err
	}
	var all []error
	for _, d := range devices {
		if failed[d.UUID] == nil {
			settle := func() error { return k.reconcileSoftLimits(ctx, d) }
			if err := errors.Join(k.restoreLimits(ctx, d.UUID), k.runExclusive(ctx, settle)); err != nil {
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
