package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/enforcement"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/mps/probe"
	"github.com/gpumem/gpumem/pkg/node/nvml"
	"github.com/gpumem/gpumem/pkg/process/daemon"
)

// mpsCommand is the first argument with which the program supervises the MPS
// daemon instead of serving the kubelet.
const mpsCommand = "mps"

// Times of the supervisor that nobody needs to set.
const (
	mpsInterval = 2 * time.Second
	mpsTimeout  = 10 * time.Second
	mpsBackoff  = time.Second
	mpsQuit     = 10 * time.Second
)

// mpsOptions are the flags of that command.
type mpsOptions struct {
	dir, control, protocol string
	nvmlLibrary            string
	driverRoot             string
	reserveMiB             int64
	olderOnly              bool
	exclusive              bool
	drain                  time.Duration
	log                    daemon.Log
	check                  bool
	probing                bool
}

func (o *mpsOptions) parse(args []string, stdout io.Writer) error {
	f := pflag.NewFlagSet("gpumem-device-plugin mps", pflag.ContinueOnError)
	f.StringVar(&o.dir, "mps-dir", "/run/gpumem/mps", "`directory` of the MPS daemon, the same on the node, here and in containers")
	f.StringVar(&o.control, "mps-control", "", "`file` of nvidia-cuda-mps-control; empty: look on the PATH, then under --driver-root")
	f.StringVar(&o.protocol, "mps-protocol", "auto", "`version` of the daemon: 2, 3, or auto for the newest that the driver has")
	f.StringVar(&o.nvmlLibrary, "nvml-library", "", "`file` to load NVML from; empty: look for libnvidia-ml.so.1 under --driver-root")
	f.StringVar(&o.driverRoot, "driver-root", "/", "`directory` under which the NVIDIA driver is installed")
	f.Int64Var(&o.reserveMiB, "reserve-mib", 0, "`MiB` of each GPU that no client may have")
	f.BoolVar(&o.olderOnly, "older-drivers-only", false, "run no daemon where the driver limits memory by itself (615 and newer)")
	f.BoolVar(&o.exclusive, "exclusive", false, "put the GPUs into EXCLUSIVE_PROCESS mode meanwhile: no program can use them past the daemon")
	f.DurationVar(&o.drain, "drain", time.Minute, "`time` for clients to end before the daemon does")
	o.log = daemon.DefaultLog()
	o.log.AddFlags(f)
	f.BoolVar(&o.check, "check", false, "say how the daemon is, and end")
	f.BoolVar(&o.probing, "probe", false, "check that the daemon limits a client with the environment of this process to 1 GiB, and end")
	if err := daemon.Parse(f, `gpumem-device-plugin mps keeps NVIDIA's MPS control daemon running.

Usage: gpumem-device-plugin mps [flags]`, args, stdout); err != nil {
		return err
	}
	return o.validate()
}

func (o *mpsOptions) validate() error {
	var errs []error
	if !filepath.IsAbs(o.dir) {
		errs = append(errs, fmt.Errorf("--mps-dir: %q, want an absolute path: containers see it too", o.dir))
	}
	if o.protocol != "auto" && o.protocol != "2" && o.protocol != "3" {
		errs = append(errs, fmt.Errorf("--mps-protocol: %q, want auto, 2 or 3", o.protocol))
	}
	if o.reserveMiB < 0 || o.drain < 0 {
		errs = append(errs, errors.New("--reserve-mib and --drain: want 0 or more"))
	}
	return errors.Join(errs...)
}

// runMPS supervises the MPS daemon until the context is done.
func runMPS(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o mpsOptions
	switch err := o.parse(args, stdout); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	case o.check:
		_, err := mps.NewClient(o.dir).Check(ctx)
		return err
	case o.probing:
		return probe.Run(o.cuda())
	}
	log, err := o.log.New(stderr)
	if err != nil {
		return err
	}
	machine := nvml.Machine{Open: nvml.Opener(o.nvmlLibrary, o.driverRoot)}
	driver, limits, ok := o.waitForGPUs(ctx, machine, log)
	if !ok {
		return nil
	}
	if o.olderOnly && enforcement.PartitionsMemory(driver) {
		log.Info("no daemon is run: the driver limits memory by itself", zap.String("driver", driver))
		<-ctx.Done()
		return nil
	}
	control, err := o.findControl()
	if err != nil {
		return err
	}
	cfg := mps.Config{
		Dir: o.dir, Program: control, Protocol: o.protocolFor(driver), Settings: mps.Settings{PinnedMiB: limits}, Mounts: mps.Kernel{}, Probe: o.probe,
		Exclusive: o.exclusive, Interval: mpsInterval, Timeout: mpsTimeout, Backoff: mpsBackoff, Drain: o.drain, Quit: mpsQuit,
	}
	log.Info("supervising", zap.String("version", version), zap.String("driver", driver), zap.String("program", control), zap.Int("protocol", cfg.Protocol))
	return mps.New(cfg, machine, log.Named("mps")).Run(ctx)
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

// cuda returns the path to load CUDA's library from: beside NVML, where that is said.
func (o *mpsOptions) cuda() string {
	const name = "libcuda.so.1"
	if o.nvmlLibrary != "" {
		return filepath.Join(filepath.Dir(o.nvmlLibrary), name)
	}
	return nvml.FindInDriver(name, o.driverRoot)
}

// waitForGPUs waits for the driver, which may come later. Not ok is a context that
// is done.
func (o *mpsOptions) waitForGPUs(ctx context.Context, machine nvml.Machine, log *zap.Logger) (driver string, limits []int64, ok bool) {
	for said := ""; ; {
		driver, limits, err := machine.Limits(o.reserveMiB)
		if err == nil {
			return driver, limits, true
		}
		if err.Error() != said {
			log.Info("waiting for a GPU", zap.Error(err))
		}
		said = err.Error()
		select {
		case <-ctx.Done():
			return "", nil, false
		case <-time.After(probeRetry):
		}
	}
}

// findControl returns the daemon's program.
func (o *mpsOptions) findControl() (string, error) {
	const name = "nvidia-cuda-mps-control"
	if o.control != "" {
		return o.control, nil
	}
	if found, err := exec.LookPath(name); err == nil {
		return found, nil
	}
	for _, dir := range []string{"usr/bin", "bin"} {
		if found, err := exec.LookPath(filepath.Join(o.driverRoot, dir, name)); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s is neither on the PATH nor under %s: NVIDIA's runtime brings it with the driver capability \"compute\"", name, o.driverRoot)
}

// protocolFor returns the newest version that a driver's daemon has, unless it is
// said.
func (o *mpsOptions) protocolFor(driver string) int {
	if n, err := strconv.Atoi(o.protocol); err == nil {
		return n
	}
	if enforcement.PartitionsMemory(driver) {
		return 3
	}
	return 2
}
