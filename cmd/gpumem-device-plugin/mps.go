package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/gpumem/gpumem/pkg/node/enforcement"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/mps/probe"
	"github.com/gpumem/gpumem/pkg/node/nvml"
)

// mpsCommand is the first argument with which the program supervises the MPS
// daemon instead of serving the kubelet.
const mpsCommand = "mps"

// Times of the supervisor that need no flag.
const (
	mpsInterval = 2 * time.Second
	mpsTimeout  = 10 * time.Second
	mpsBackoff  = time.Second
	mpsQuit     = 10 * time.Second
)

// runMPS supervises the MPS daemon until the context is done.
func runMPS(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o mpsOptions
	switch err := o.parse(args, stdout); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	case o.check:
		return mps.CheckAll(ctx, o.dir)
	case o.probing:
		return probe.Run(o.cuda())
	}
	log, err := o.log.New(stderr)
	if err != nil {
		return err
	}
	machine := nvml.Machine{Open: nvml.Opener(o.nvmlLibrary, o.driverRoot)}
	driver, gpus, instances, ok := o.waitForGPUs(ctx, machine, log)
	if !ok {
		return nil
	}
	if o.olderOnly && enforcement.PartitionsMemory(driver) {
		log.Info("no daemon is run: the driver limits memory by itself", zap.String("driver", driver))
		<-ctx.Done()
		return nil
	}
	control, err := mps.FindControl(o.control, o.driverRoot)
	if err != nil {
		return err
	}
	cfg := mps.Config{
		Dir: o.dir, Shm: filepath.Join(o.dir, "shm"), Program: control, Mounts: &mps.Kernel{}, Probe: o.probe,
		Exclusive: o.exclusive, Interval: mpsInterval, Timeout: mpsTimeout, Backoff: mpsBackoff, Drain: o.drain, Quit: mpsQuit,
	}
	daemons := daemonsOf(cfg, gpus, instances, func() ([]nvml.Part, []nvml.Part, int, error) {
		_, gpus, instances, lost, err := machine.Parts(o.reserveMiB, o.ours.Selects)
		return gpus, instances, lost, err
	})
	group, ctx := errgroup.WithContext(ctx)
	for _, cfg := range daemons {
		log.Info("supervising", zap.String("version", version), zap.String("driver", driver), zap.String("program", control), zap.String("dir", cfg.Dir))
		group.Go(func() error { return mps.New(cfg, machine, log.Named("mps")).Run(ctx) })
	}
	return group.Wait()
}

// probe has another process of this program be a client.
func (o *mpsOptions) probe(ctx context.Context, env []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, mpsCommand, "--probe", "--driver-root="+o.driverRoot, "--nvml-library="+o.nvmlLibrary)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return errors.New("a client does not come to an end")
	case err != nil:
		return errors.New(strings.TrimSpace(string(out)))
	}
	return nil
}

// cuda returns the path to load CUDA's library from: next to NVML, where its path is given.
func (o *mpsOptions) cuda() string {
	const name = "libcuda.so.1"
	if o.nvmlLibrary != "" {
		return filepath.Join(filepath.Dir(o.nvmlLibrary), name)
	}
	return nvml.FindInDriver(name, o.driverRoot)
}

// waitForGPUs waits for the driver, which may come later, and returns its version, the GPUs that answer, and the MIG
// instances that are to have a daemon. Not ok is a context that is done.
func (o *mpsOptions) waitForGPUs(ctx context.Context, machine nvml.Machine, log *zap.Logger) (driver string, gpus, instances []nvml.Part, ok bool) {
	for said := ""; ; {
		driver, gpus, instances, _, err := machine.Parts(o.reserveMiB, o.ours.Selects)
		switch {
		case err != nil:
		case o.mig:
			return driver, gpus, instances, true
		default:
			return driver, gpus, nil, true
		}
		if err.Error() != said {
			log.Info("waiting for a GPU", zap.Error(err))
		}
		said = err.Error()
		select {
		case <-ctx.Done():
			return "", nil, nil, false
		case <-time.After(probeRetry):
		}
	}
}
