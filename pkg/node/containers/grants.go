package containers

import (
	"context"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/usage"
)

const mib = 1 << 20

// Grants returns what containers have been granted of each GPU, as the kubelet
// tells, and plain init containers, which it does not.
func (c *Containers) Grants(ctx context.Context) ([]usage.Grant, error) {
	s, _, err := c.state.Look(ctx)
	if err != nil {
		return nil, err
	}
	var out []usage.Grant
	for _, h := range s.Allocated {
		for uuid, slots := range s.ByDevice(h.Only(gpu.Memory)) {
			d, _ := s.Inventory.Device(uuid)
			out = append(out, usage.Grant{
				Namespace: h.Namespace, Name: h.Name, Container: h.Container,
				Device: uuid, Bytes: uint64(d.MiB(gpu.Units(len(slots)), s.Inventory.UnitMiB)) * mib,
			})
		}
	}
	for i := range s.Pods {
		out = append(out, c.initGrants(s, &s.Pods[i])...)
	}
	return out, nil
}

func (c *Containers) initGrants(s allocation.State, pod *allocation.Pod) (out []usage.Grant) {
	for _, one := range pod.Request.Containers.All() {
		if slices.ContainsFunc(s.Allocated, func(h allocation.Allocated) bool { return h.Of(pod.Pod) && h.Container == one.Name }) {
			continue // it is listed
		}
		h, err := c.ofInit(&holding{pod: pod, inventory: s.Inventory}, s, one.Name)
		if h == nil || err != nil {
			continue // it asks for nothing, or its GPU is gone
		}
		for _, d := range h.memory.Devices {
			out = append(out, usage.Grant{
				Namespace: pod.Pod.Namespace, Name: pod.Pod.Name, Container: one.Name,
				Device: d.UUID, Bytes: uint64(d.MiB(gpu.Units(h.memory.Each), s.Inventory.UnitMiB)) * mib,
			})
		}
	}
	return out
}
