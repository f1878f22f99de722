package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/coexist"
	"github.com/gpumem/gpumem/pkg/node/enforcement"
	"github.com/gpumem/gpumem/pkg/node/inventory"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/mps/probe"
	"github.com/gpumem/gpumem/pkg/node/nvml"
	"github.com/gpumem/gpumem/pkg/process/daemon"
)

// mpsCommand is the first argument that makes the program supervise the MPS daemon instead of serving the
// kubelet.
const mpsCommand = "mps"

const (
	mpsInterval = 2 * time.Second
	mpsTimeout  = 10 * time.Second
	mpsBackoff  = time.Second
	mpsQuit     = 10 * time.Second
)

// mpsOptions are the flags of mpsCommand.
type mpsOptions struct {
	dir, control string
	nvmlLibrary  string
	driverRoot   string
	kubeletDir   string
	devices      string
	ours         coexist.Selector // parsed from devices
	reserveMiB   int64
	mig          bool
	olderOnly    bool
	exclusive    bool
	drain        time.Duration
	log          daemon.Log
	check        bool
	probing      bool
}

func (o *mpsOptions) parse(args []string, stdout io.Writer) error {
	f := pflag.NewFlagSet("gpumem-device-plugin mps", pflag.ContinueOnError)
	f.StringVar(&o.dir, "mps-dir", "/run/gpumem/mps", "`directory` of the MPS daemon, the same on the node, here and in containers")
	f.StringVar(&o.control, "mps-control", "", "`file` of nvidia-cuda-mps-control; empty: look on the PATH, then under --driver-root")
	f.StringVar(&o.nvmlLibrary, "nvml-library", "", "`file` to load NVML from; empty: look for libnvidia-ml.so.1 under --driver-root")
	f.StringVar(&o.driverRoot, "driver-root", "/", "`directory` under which the NVIDIA driver is installed")
	f.StringVar(&o.devices, "devices", "", "`globs` of the UUIDs or indexes of the GPUs that the device plugin offers, with commas between them and ! before those that it leaves to others; empty: all. Others are not probed")
	f.StringVar(&o.kubeletDir, "kubelet-dir", defaultKubeletDir, "`directory` of the kubelet, where the device plugin records which GPUs the indexes in --devices select")
	f.Int64Var(&o.reserveMiB, "reserve-mib", 0, "`MiB` of each GPU that no client may have")
	f.BoolVar(&o.mig, "mig", false, "run a daemon for each MIG instance as well")
	f.BoolVar(&o.olderOnly, "older-drivers-only", false, "run no daemon where the driver limits memory by itself (615 and newer)")
	f.BoolVar(&o.exclusive, "exclusive", false, "put the GPUs into EXCLUSIVE_PROCESS mode meanwhile: no program can use them past the daemon")
	f.DurationVar(&o.drain, "drain", time.Minute, "`time` for clients to end before the daemon does")
	o.log.AddFlags(f)
	f.BoolVar(&o.check, "check", false, "print the daemon's health and exit")
	f.BoolVar(&o.probing, "probe", false, "check that the daemon limits a client with the environment of this process to 1 GiB, and end")
	if err := daemon.Parse(f, `gpumem-device-plugin mps keeps NVIDIA's MPS control daemon running.

Usage: gpumem-device-plugin mps [flags]`, args, stdout); err != nil {
		return err
	}
	return o.validate()
}

func (o *mpsOptions) validate() error {
	var errs daemon.FlagErrors
	errs.Require(filepath.IsAbs(o.dir), "mps-dir", "%q, want an absolute path: containers see it too", o.dir)
	errs.Require(o.reserveMiB >= 0 && o.drain >= 0, "reserve-mib and --drain", "want 0 or more")
	o.ours = daemon.ParseFlag(&errs, "devices", coexist.ParseSelector, o.devices)
	return errors.Join(errs...)
}

// runMPS supervises the node's MPS daemons until the context is done.
func runMPS(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o mpsOptions
	switch err := o.parse(args, stdout); {
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
	machine := nvml.NewMachine(nvml.Opener(o.nvmlLibrary, o.driverRoot), mpsTimeout)
	type parts struct {
		driver          string
		gpus, instances []inventory.Part
	}
	found, ok := retry(ctx, probeRetry, log, "waiting for a GPU", func(context.Context) (p parts, err error) { // the driver may be loaded later
		p.driver, p.gpus, p.instances, _, err = machine.Parts(o.reserveMiB, o.selected)
		return p, err
	})
	if !ok {
		return nil
	}
	driver := found.driver
	if !o.mig {
		found.instances = nil // MIG instances get no daemon
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
	daemons := daemonsOf(cfg, found.gpus, found.instances, func() ([]inventory.Part, []inventory.Part, int, error) {
		_, gpus, instances, lost, err := machine.Parts(o.reserveMiB, o.selected)
		return gpus, instances, lost, err
	})
	group, ctx := errgroup.WithContext(ctx)
	for _, cfg := range daemons {
		log.Info("supervising", zap.String("version", version), zap.String("driver", driver), zap.String("program", control), zap.String("dir", cfg.Dir))
		group.Go(func() error { return mps.New(cfg, machine, log.Named("mps")).Run(ctx) })
	}
	return group.Wait()
}

// selected returns the GPUs that the device plugin offers.
func (o *mpsOptions) selected(devices []gpu.Device) map[gpu.UUID]bool {
	return o.ours.Selected(choiceFile(o.kubeletDir), devices)
}

// probe runs a second process of this program as an MPS client.
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
		return errors.New("a client does not terminate")
	case err != nil:
		return errors.New(strings.TrimSpace(string(out)))
	}
	return nil
}

// cuda returns the path of the CUDA library, in the directory of --nvml-library if that is set.
func (o *mpsOptions) cuda() string {
	const name = "libcuda.so.1"
	if o.nvmlLibrary != "" {
		return filepath.Join(filepath.Dir(o.nvmlLibrary), name)
	}
	return nvml.FindInDriver(name, o.driverRoot)
}

// daemonsOf returns one daemon config for each MIG instance, and one for the other GPUs if there are any. The
// function list returns the current GPUs and instances, and the number of GPUs that do not answer.
func daemonsOf(whole mps.Config, gpus, instances []inventory.Part, list func() (gpus, instances []inventory.Part, lost int, err error)) (daemons []mps.Config) {
	whole.GPUs = func() ([]inventory.Part, bool, error) {
		gpus, _, lost, err := list()
		if len(instances) > 0 { // a daemon that sees only some GPUs must not get closed GPUs
			return slices.DeleteFunc(gpus, func(p inventory.Part) bool { return p.Closed }), false, err
		}
		return gpus, lost == 0, err
	}
	if open := func(p inventory.Part) bool { return !p.Closed }; len(instances) == 0 || slices.ContainsFunc(gpus, open) {
		daemons = append(daemons, whole)
	}
	for _, i := range instances {
		daemon := whole
		daemon.Dir = mps.DirOf(whole.Dir, gpu.Device{UUID: i.UUID})
		daemon.Exclusive = false // MIG instances have no compute mode
		daemon.GPUs = func() ([]inventory.Part, bool, error) {
			_, now, _, err := list()
			at := slices.IndexFunc(now, func(p inventory.Part) bool { return p.UUID == i.UUID })
			if at < 0 {
				if err == nil {
					err = fmt.Errorf("NVML does not list %s", i.UUID)
				}
				return nil, false, err
			}
			return now[at : at+1], false, err
		}
		daemons = append(daemons, daemon)
	}
	return daemons
}
