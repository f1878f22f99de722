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

// Driver limits what control groups may have of GPUs (NVML, package nvml). A group is named by
// the full path of its folder, amounts are bytes.
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

// within reports whether a limit that was read is the one that was set, in whole pages.
func within(read, set uint64) bool { return read <= set && set-read < maxPage }

// kernel is the level of that name.
type kernel struct {
	driver  Driver
	cgroups Cgroups

	turn   chan struct{}           // one change at a time: settle adds up what groups have. Guards the next two
	limits map[string]limit        // of containers that run, by their groups' folders
	cut    map[string][]gpu.Device // by the folders of groups that may have got a limit after nobody waited for it

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

// errBusy says that the driver is asked for something else: it tells nothing of whether limits can be set.
var errBusy = errors.New("the driver is asked for other limits")

// begin waits for its turn, but no longer than the context: the container runtime does not either, and
// starts a container that it hears nothing about.
func (k *kernel) begin(ctx context.Context) (end func(), err error) {
	select {
	case k.turn <- struct{}{}:
		return func() { <-k.turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errBusy, ctx.Err())
	}
}

// limit is what a container may have of each of its GPUs.
type limit struct {
	gpus  []gpu.UUID
	bytes uint64
}

// hold gives a container its limit of each of its GPUs. Where one fails, none keeps memory
// reserved.
func (k *kernel) hold(ctx context.Context, group string, devices []gpu.Device, limitMiB int64) error {
	if limitMiB <= 0 || limitMiB > unlimited/2/mib {
		return fmt.Errorf("a limit of %d MiB", limitMiB)
	}
	dir, err := k.cgroups.dir(group)
	if err != nil {
		return err
	}
	end, err := k.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
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
}

// undo gives back what calls have reserved that nobody waited for, unless the container has its limit now.
func (k *kernel) undo(ctx context.Context) error {
	end, err := k.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	for dir, devices := range k.cut {
		if _, held := k.limits[dir]; !held {
			if err := k.free(ctx, dir, devices); err != nil {
				return err
			}
		}
		delete(k.cut, dir)
	}
	return nil
}

// keep reads the limits of containers that run on a GPU, and sets again what the driver has lost: it forgets
// them when it is loaded again, or a GPU is reset, and the containers go on. Others have their turn between two containers.
func (k *kernel) keep(ctx context.Context, id gpu.UUID) error {
	end, err := k.begin(ctx)
	if err != nil {
		return err
	}
	dirs := slices.Sorted(maps.Keys(k.limits))
	end()
	var errs []error
	for _, dir := range dirs {
		if err := k.keepGroup(ctx, id, dir); err != nil {
			errs = append(errs, fmt.Errorf("a limit is lost and could not be set again: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (k *kernel) keepGroup(ctx context.Context, id gpu.UUID, dir string) error {
	end, err := k.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
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

// release gives back what is reserved for a container that ends, and what earlier ones left.
func (k *kernel) release(ctx context.Context, group string, devices []gpu.Device) error {
	dir, err := k.cgroups.dir(group)
	if err != nil {
		return err
	}
	end, err := k.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	delete(k.limits, dir)
	return errors.Join(k.free(ctx, dir, devices), k.settleAll(ctx, devices))
}

// free sets a group's soft limits to nothing. The hard ones remain, for a program that still runs.
// A group that is gone has none; settle finds what it left.
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

// settleAll gives back what groups that are gone have left reserved above them.
func (k *kernel) settleAll(ctx context.Context, devices []gpu.Device) error {
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

// settle returns what is reserved for a group. One above those of containers has what these have
// together: the driver adds to it as they are given limits, and does not hear of one that is
// removed. Where it has more, that is taken away, from those further up too.
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
	// What was below has been taken from here already.
	has, hard, ok, err := k.driver.Get(ctx, id, dir)
	if err != nil || !ok || has <= sum {
		return has, err
	}
	return sum, k.driver.Set(ctx, id, dir, sum, hard)
}

const (
	// scratch is the group that the driver is tested with, below the one of all pods.
	scratch   = "gpumem-selftest"
	testBytes = 64 * mib

	// retest is after how long what was proven is proven again, retry what failed.
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

// run runs one test and records its result.
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
		if err := k.testGPU(ctx, d.UUID, dir); err != nil {
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
			if err := errors.Join(k.keep(ctx, d.UUID), k.settleGPU(ctx, d.UUID, pods)); err != nil {
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
	end, err := k.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	err = k.set(ctx, id, dir, testBytes)
	if cleared := k.driver.Set(ctx, id, dir, 0, unlimited); err == nil {
		err = cleared
	}
	return err
}

func (k *kernel) settleGPU(ctx context.Context, id gpu.UUID, pods string) error {
	end, err := k.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	_, err = k.settle(ctx, id, pods)
	return err
}
