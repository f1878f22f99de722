package main

import (
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/nvml"
)

// withInstances returns the daemons of a node.
func (o *mpsOptions) withInstances(whole mps.Config, machine nvml.Machine) ([]mps.Config, error) {
	gpus, instances, err := machine.Parts(o.reserveMiB, o.ours.Selects)
	return daemonsOf(whole, gpus, instances, machine.FreeOf), err
}

// daemonsOf returns one daemon of each MIG instance, and one of the other GPUs if there are any. Free
// returns how many MiB of parts no program uses.
func daemonsOf(whole mps.Config, gpus, instances []nvml.Part, free func([]nvml.Part) ([]int64, error)) (daemons []mps.Config) {
	if len(instances) == 0 {
		return []mps.Config{whole}
	}
	of := func(dir string, parts ...nvml.Part) {
		cfg := whole
		cfg.Dir, cfg.Settings = dir, mps.Settings{}
		for _, p := range parts {
			cfg.Only, cfg.Indexes = append(cfg.Only, string(p.UUID)), append(cfg.Indexes, p.Index)
			cfg.Settings.PinnedMiB = append(cfg.Settings.PinnedMiB, p.MiB)
		}
		cfg.Free = func() ([]int64, error) { return free(parts) }
		daemons = append(daemons, cfg)
	}
	if len(gpus) > 0 {
		of(whole.Dir, gpus...)
	}
	for _, i := range instances {
		of(mps.DirOf(whole.Dir, gpu.Device{UUID: i.UUID}), i)
		daemons[len(daemons)-1].Exclusive = false // it has no compute mode
	}
	return daemons
}
