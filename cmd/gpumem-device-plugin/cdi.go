package main

import (
	"cmp"
	"path/filepath"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/cdi"
	"github.com/gpumem/gpumem/pkg/node/nvml"
)

// cdiOptions are the flags of the CDI files with which the plugin describes GPUs to the container runtime.
type cdiOptions struct {
	dir              string
	hook             string
	driverRoot       string
	driverRootOnNode string
}

func defaultCDI() cdiOptions { return cdiOptions{dir: "/var/run/cdi", driverRootOnNode: "/"} }

func (o *cdiOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.dir, "cdi-dir", o.dir, "`directory` where the container runtime looks for CDI files, for --claims and --cdi-hook")
	f.StringVar(&o.hook, "cdi-hook", o.hook, "`file` of NVIDIA's nvidia-cdi-hook on the node: describe the GPUs to the container runtime in a CDI file; empty: others do, as nvidia.com/gpu")
	f.StringVar(&o.driverRoot, "cdi-driver-root", o.driverRoot, "`directory` where this process sees the node's driver and device files, for --cdi-hook; empty: the value of --driver-root")
	f.StringVar(&o.driverRootOnNode, "cdi-driver-root-on-node", o.driverRootOnNode, "the same `directory` as the node has it")
}

// check reports invalid flags to m.
func (o *cdiOptions) check(m *mistakes, claims bool) {
	const want = "%q, want an absolute path: the container runtime sees it too"
	m.require(!claims && o.hook == "" || filepath.IsAbs(o.dir), "cdi-dir", want, o.dir)
	m.require(o.hook == "" || filepath.IsAbs(o.hook), "cdi-hook", want, o.hook)
	m.require(o.hook == "" || filepath.IsAbs(o.driverRootOnNode), "cdi-driver-root-on-node", want, o.driverRootOnNode)
}

// describer returns the writer of the node's CDI file, or nil if other software describes the GPUs.
func (c config) describer(log *zap.Logger, gpus *nvml.Prober) *cdi.Writer {
	if c.cdi.hook == "" {
		return nil
	}
	return cdi.NewWriter(cdi.Writer{
		Domain: c.names.Domain(), Dir: c.cdi.dir, Hook: c.cdi.hook,
		DriverRoot: cmp.Or(c.cdi.driverRoot, c.driverRoot), NodeRoot: c.cdi.driverRootOnNode,
		Open: nvml.Opener(c.nvmlLibrary, c.driverRoot), Load: driverHost.Load, Source: gpus, Log: log.Named("cdi"),
	})
}
