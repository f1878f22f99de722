package api

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// GPUsOf returns the GPUs that a device of NVIDIA's driver is, or is a part of: it says so by its
// attributes uuid and parentUUID.
func GPUsOf(d resourceapi.Device) (ids []gpu.UUID) {
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
