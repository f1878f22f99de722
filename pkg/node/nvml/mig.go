package nvml

import (
	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/speeds"
)

// maxInstances is how many MIG instances a GPU has at most (NVIDIA, "Multi-Instance GPU").
const maxInstances = 7

// An instance is a MIG instance of a GPU: what it has of the GPU.
type instance struct {
	of     int    // index of the GPU
	id     uint32 // of its GPU instance
	place  int    // in NVML's list of the GPU's
	slices int    // of the GPU's compute slices; 0: not known
}

// instances reads the MIG instances of a GPU. What NVML does not tell of an instance is as with its GPU.
func (s *session) instances(parent nvml.Device, of reading, sampled map[gpu.UUID]uint64) (out []reading) {
	for place := range maxInstances {
		handle, ret := parent.GetMigDeviceHandleByIndex(place)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // places can have gaps, and a GPU fewer of them
		}
		r := reading{failed: failure(ret)}
		if ret == nvml.SUCCESS {
			r = s.ask(handle, of.index, sampled)
		}
		r.instance = &instance{of: of.index, place: place}
		if r.failed == "" {
			r.device.ComputeCapability, r.device.PCI, r.device.NUMANode = of.device.ComputeCapability, of.device.PCI, of.device.NUMANode
			if id, ret := handle.GetGpuInstanceId(); ret == nvml.SUCCESS {
				r.instance.id = uint32(id)
			}
			if a, ret := handle.GetAttributes(); ret == nvml.SUCCESS {
				r.instance.slices = int(a.ComputeInstanceSliceCount)
			}
		}
		out = append(out, r)
	}
	return out
}

// flatten puts the readings of MIG instances behind those of the GPUs, each with an index of its own
// that does not depend on which others there are.
func flatten(gpus []reading) []reading {
	out := gpus
	for _, r := range gpus {
		for _, i := range r.instances {
			i.index = len(gpus) + maxInstances*r.index + i.instance.place
			i.device.Index = i.index
			out = append(out, i)
		}
	}
	return out
}

// speed is how fast a device is: an instance has the part of its GPU's that it has of the slices.
func (r reading) speed(of speeds.Tables) int {
	speed := of.Of(r.device.Model)
	if r.instance == nil || r.instance.slices == 0 || speed == 0 {
		return speed
	}
	return max(1, speed*r.instance.slices/maxInstances)
}
