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
	most   int    // how many of these the GPU has; 0: not known
}

// instances reads the MIG instances of a GPU. What NVML does not tell of an instance is as with its GPU.
// One whose memory others may have too is not offered: NVML lists the compute instances of a GPU instance,
// each with all of its memory.
func (s *session) instances(parent nvml.Device, of reading, sampled map[gpu.UUID]uint64) (out []reading) {
	most, _ := parent.GetMaxMigDeviceCount()
	for place := range maxInstances {
		handle, ret := parent.GetMigDeviceHandleByIndex(place)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // places can have gaps, and a GPU fewer of them
		}
		r := reading{failed: failure(ret)}
		if ret == nvml.SUCCESS {
			r = s.ask(handle, of.index, sampled)
		}
		r.instance = &instance{of: of.index, place: place, id: wholeGPU, most: most}
		if r.failed == "" {
			r.device.ComputeCapability, r.device.PCI, r.device.NUMANode = of.device.ComputeCapability, of.device.PCI, of.device.NUMANode
			r.device.Parent = of.device.UUID
			id, ret := handle.GetGpuInstanceId()
			a, told := handle.GetAttributes()
			switch r.instance.slices = int(a.ComputeInstanceSliceCount); {
			case ret != nvml.SUCCESS:
				r.failed = failure(ret)
			case told != nvml.SUCCESS:
				r.failed = failure(told)
			case a.ComputeInstanceSliceCount != a.GpuInstanceSliceCount:
				r.failed = "it is a part of a GPU instance, and shares its memory with the other parts"
			default:
				r.instance.id = uint32(id)
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
	if r.instance == nil || r.instance.slices == 0 || r.instance.most == 0 || speed == 0 {
		return speed
	}
	return max(1, speed*r.instance.slices/r.instance.most)
}
