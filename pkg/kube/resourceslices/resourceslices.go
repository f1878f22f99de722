package resourceslices

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// GPUs maps each published GPU to the name of the driver that publishes it.
type GPUs map[gpu.UUID]string

// Add adds the GPUs of a ResourceSlice.
func (g GPUs) Add(slice *resourceapi.ResourceSlice) {
	for _, d := range slice.Spec.Devices {
		for _, id := range deviceUUIDs(d) {
			g[id] = max(g[id], slice.Spec.Driver)
		}
	}
}

// deviceUUIDs returns the UUIDs of a device and of the GPU that contains the device, from the attributes uuid and
// parentUUID of NVIDIA's driver.
func deviceUUIDs(d resourceapi.Device) (ids []gpu.UUID) {
	for name, a := range d.Attributes {
		_, id, qualified := strings.Cut(string(name), "/")
		if !qualified {
			id = string(name)
		}
		if (id == "uuid" || id == "parentUUID") && a.StringValue != nil {
			ids = append(ids, gpu.UUID(*a.StringValue))
		}
	}
	return ids
}
