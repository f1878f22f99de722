package deviceplugin

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/gpumem/gpumem/pkg/allocation"
	"github.com/gpumem/gpumem/pkg/enforcement"
	"github.com/gpumem/gpumem/pkg/gpu"
)

// Environment returns the variables of a container that the runtime is about to
// make, from what the kubelet has given to it.
func (p *Plugin) Environment(ctx context.Context, namespace, pod, container string) (env map[string]string, ok bool, err error) {
	s, h, err := p.holding(ctx, namespace, pod, container)
	if err != nil || h.Slots == nil {
		return nil, false, err
	}
	if slices.ContainsFunc(h.Slots, gpu.SlotID.GPUShare) {
		return nil, false, nil // it keeps what gpushare's plugin gave it
	}
	memory, cores := split(h.Slots)
	grant, err := allocation.Resolve(s, gpu.Memory, memory)
	if err != nil {
		return nil, false, err
	}
	inv := s.Inventory
	inv.Enforcement = p.levelOfHeld(s, h)
	env = response(grant, inv, p.cfg).GetEnvs()
	if len(cores) > 0 {
		share, err := allocation.Resolve(s, gpu.Cores, cores)
		if err != nil {
			return nil, false, err
		}
		maps.Copy(env, coreResponse(share, inv).GetEnvs())
	}
	return env, true, nil
}

// Hold makes sure, before a container's program runs, of the limit that it was
// promised.
func (p *Plugin) Hold(ctx context.Context, namespace, pod, container, cgroupsPath string) error {
	s, h, err := p.holding(ctx, namespace, pod, container)
	if err != nil || h.Slots == nil || !p.levelOfHeld(s, h).AtLeast(gpu.EnforcementKernel) {
		return err
	}
	memory, _ := split(h.Slots)
	grant, err := allocation.Resolve(s, gpu.Memory, memory)
	if err != nil {
		return err
	}
	group, err := enforcement.GroupOf(cgroupsPath)
	if err != nil {
		return err
	}
	if err := p.cfg.Hold(group, grant.Devices, int64(grant.Each)*s.Inventory.UnitMiB); err != nil {
		err = fmt.Errorf("its limit of GPU memory does not hold: %w", err)
		if i := slices.IndexFunc(s.Pods, func(pod allocation.Pod) bool { return of(h, pod) }); i >= 0 {
			p.events.Pod(s.Pods[i].Pod, true, "GPUMemoryNotEnforced", fmt.Sprintf("container %s does not start: %v", container, err))
		}
		return err
	}
	return nil
}

// holding returns what the kubelet has given to a container; no slots, where it does
// not tell.
func (p *Plugin) holding(ctx context.Context, namespace, pod, container string) (allocation.State, allocation.Held, error) {
	s, _, err := p.look(ctx)
	if err != nil {
		return s, allocation.Held{}, err
	}
	for _, h := range s.Held {
		if h.Namespace == namespace && h.Name == pod && h.Container == container {
			return s, h, nil
		}
	}
	return s, allocation.Held{}, nil
}

// levelOfHeld returns the level of the pod that holds something.
func (p *Plugin) levelOfHeld(s allocation.State, h allocation.Held) gpu.Enforcement {
	if i := slices.IndexFunc(s.Pods, func(pod allocation.Pod) bool { return of(h, pod) }); i >= 0 {
		return p.levelOf(s, s.Pods[i])
	}
	memory, _ := split(h.Slots)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.levels.of(memory)
}

// split returns slots of memory and of cores.
func split(slots []gpu.SlotID) (memory, cores []gpu.SlotID) {
	for _, id := range slots {
		if id.Resource() == gpu.Cores {
			cores = append(cores, id)
		} else {
			memory = append(memory, id)
		}
	}
	return memory, cores
}
