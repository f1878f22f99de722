package main

import (
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/nvml"
)

// withInstances returns the daemons of a node: one of each MIG instance, and one of the other GPUs if there
// are any.
func (o *mpsOptions) withInstances(whole mps.Config, machine nvml.Machine) (daemons []mps.Config, err error) {
	gpus, instances, err := machine.Parts(o.reserveMiB, o.ours.Selects)
	if err != nil || len(instances) == 0 {
		return []mps.Config{whole}, err
	}
	whole.Protocol = 2
	of := func(dir string, parts ...nvml.Part) {
		cfg := whole
		cfg.Dir, cfg.Settings = dir, mps.Settings{}
		for _, p := range parts {
			cfg.Only, cfg.Indexes = append(cfg.Only, string(p.UUID)), append(cfg.Indexes, p.Index)
			cfg.Settings.PinnedMiB = append(cfg.Settings.PinnedMiB, p.MiB)
		}
		cfg.Free = func() ([]int64, error) { return machine.FreeOf(parts) }
		daemons = append(daemons, cfg)
	}
	if len(gpus) > 0 {
		of(o.dir, gpus...)
	}
	for _, i := range instances {
		of(mps.DirOf(o.dir, gpu.Device{UUID: i.UUID}), i)
		daemons[len(daemons)-1].Exclusive = false // it has no compute mode
	}
	return daemons, nil
}
