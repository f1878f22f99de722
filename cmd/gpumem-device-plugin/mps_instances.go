package main

import (
	"fmt"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/nvml"
)

// daemonsOf returns one daemon for each of these MIG instances, and one for the other GPUs if there are any. Look returns the
// GPUs and the instances at any later time, and the number of GPUs that do not answer.
func daemonsOf(whole mps.Config, gpus, instances []nvml.Part, look func() (gpus, instances []nvml.Part, lost int, err error)) (daemons []mps.Config) {
	whole.GPUs = func() ([]mps.GPU, bool, error) {
		gpus, _, lost, err := look()
		if len(instances) > 0 { // a daemon that does not see all GPUs is given open ones alone
			return gpusOf(slices.DeleteFunc(gpus, func(p nvml.Part) bool { return p.Closed })...), false, err
		}
		return gpusOf(gpus...), lost == 0, err
	}
	if open := func(p nvml.Part) bool { return !p.Closed }; len(instances) == 0 || slices.ContainsFunc(gpus, open) {
		daemons = append(daemons, whole)
	}
	for _, i := range instances {
		one := whole
		one.Dir = mps.DirOf(whole.Dir, gpu.Device{UUID: i.UUID})
		one.Exclusive = false // it has no compute mode
		one.GPUs = func() ([]mps.GPU, bool, error) {
			_, now, _, err := look()
			at := slices.IndexFunc(now, func(p nvml.Part) bool { return p.UUID == i.UUID })
			if at < 0 {
				if err == nil {
					err = fmt.Errorf("NVML does not list %s", i.UUID)
				}
				return nil, false, err
			}
			return gpusOf(now[at]), false, err
		}
		daemons = append(daemons, one)
	}
	return daemons
}

func gpusOf(parts ...nvml.Part) (gpus []mps.GPU) {
	for _, p := range parts {
		gpus = append(gpus, mps.GPU{UUID: string(p.UUID), Index: p.Index, MiB: p.MiB, Free: p.Free, Closed: p.Closed})
	}
	return gpus
}
