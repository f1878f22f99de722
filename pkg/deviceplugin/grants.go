package deviceplugin

import (
	"context"

	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/usage"
)

// Grants returns what containers have been granted of each GPU, as the kubelet
// tells.
func (p *Plugin) Grants(ctx context.Context) ([]usage.Grant, error) {
	s, _, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	const mib = 1 << 20
	var out []usage.Grant
	for _, h := range s.Held {
		units := make(map[gpu.UUID]uint64)
		for _, id := range h.Slots {
			if d, err := s.Slots.Device(id); err == nil && id.Resource() == gpu.Memory {
				units[d.UUID]++
			}
		}
		for uuid, n := range units {
			out = append(out, usage.Grant{
				Namespace: h.Namespace, Name: h.Name, Container: h.Container,
				Device: uuid, Bytes: n * uint64(s.Inventory.UnitMiB) * mib,
			})
		}
	}
	return out, nil
}
