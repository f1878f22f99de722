package main

import (
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/nvml"
)

// withInstances returns the daemons of a node: one of each MIG instance, and that of the other GPUs if
// there are any.
func (o *mpsOptions) withInstances(whole mps.Config, machine nvml.Machine) (daemons []mps.Config, err error) {
	instances, others, err := machine.Instances(o.reserveMiB, o.ours.Selects)
	if err != nil {
		return nil, err
	}
	if len(instances) > 0 {
		whole.Protocol = 2
	}
	if others || len(instances) == 0 {
		daemons = append(daemons, whole)
	}
	for _, i := range instances {
		cfg := whole
		cfg.Dir, cfg.Instance, cfg.Exclusive = mps.DirOf(o.dir, gpu.Device{UUID: i.UUID}), string(i.UUID), false
		cfg.Settings = mps.Settings{PinnedMiB: []int64{i.MiB}}
		cfg.Free = func() ([]int64, error) { return machine.FreeOf(i.UUID) }
		daemons = append(daemons, cfg)
	}
	return daemons, nil
}
