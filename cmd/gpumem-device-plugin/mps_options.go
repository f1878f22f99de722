package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpumem/gpumem/pkg/node/coexist"
	"github.com/gpumem/gpumem/pkg/process/daemon"
)

// mpsOptions are the flags of that command.
type mpsOptions struct {
	dir, control string
	nvmlLibrary  string
	driverRoot   string
	devices      string
	ours         coexist.Selector // of devices
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
	f.Int64Var(&o.reserveMiB, "reserve-mib", 0, "`MiB` of each GPU that no client may have")
	f.BoolVar(&o.mig, "mig", false, "run a daemon for each MIG instance as well")
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
	if o.reserveMiB < 0 || o.drain < 0 {
		errs = append(errs, errors.New("--reserve-mib and --drain: want 0 or more"))
	}
	var err error
	if o.ours, err = coexist.ParseSelector(o.devices); err != nil {
		errs = append(errs, fmt.Errorf("--devices: %w", err))
	}
	return errors.Join(errs...)
}
