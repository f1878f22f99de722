package render

import (
	"context"
	"slices"

	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/usage"
)

const mib = 1 << 20

// Grants returns the granted memory by container and GPU, for containers in the kubelet's last list, and for
// plain init containers, which the kubelet does not list. It returns an error if the kubelet has never
// answered.
func (c *Containers) Grants(ctx context.Context) (out []usage.Grant, err error) {
	s, _, err := c.state.Snapshot(ctx)
	if err != nil && s.NeverListed {
		return nil, err
	}
	add := func(namespace, pod, container string, memory *grants.Grant) {
		if memory == nil {
			return // the container requests no memory, or its GPU is gone
		}
		for _, part := range memory.GPUs {
			out = append(out, usage.Grant{Namespace: namespace, Name: pod, Container: container, Device: part.UUID, Bytes: uint64(part.MiB) * mib})
		}
	}
	for _, h := range s.Allocated {
		memory, _ := c.state.Grants(h)
		add(h.Namespace, h.Name, h.Container, memory)
	}
	for _, pod := range s.Pods {
		for _, one := range pod.Request.Containers.All() {
			if slices.ContainsFunc(s.Allocated, func(h allocation.Allocated) bool { return h.BelongsTo(pod.Pod) && h.Container == one.Name }) {
				continue // the loop above has added the container
			}
			memory, _, _ := c.ofInit(s, pod, one.Name, nil)
			add(pod.Pod.Namespace, pod.Pod.Name, one.Name, memory)
		}
	}
	return out, nil
}
