package published

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// GPUs are those that drivers publish, and which driver does.
type GPUs map[gpu.UUID]string

// Add adds the GPUs of a slice.
func (g GPUs) Add(slice *resourceapi.ResourceSlice) {
	for _, d := range slice.Spec.Devices {
		for _, id := range of(d) {
			g[id] = max(g[id], slice.Spec.Driver)
		}
	}
}

// of returns the GPUs that a device of NVIDIA's driver is, or is a part of: it says so by its
// attributes uuid and parentUUID.
func of(d resourceapi.Device) (ids []gpu.UUID) {
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
