package deviceplugin

import (
	"cmp"
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/containers"
	"github.com/gpumem/gpumem/pkg/node/mps"
)

// mayStart says why a container must not start: what its environment says of its
// limit would not hold.
func (p *Server) mayStart(ctx context.Context, s allocation.State, pod allocation.Pod, container string) error {
	level := p.state.LevelOf(s, pod)
	if !level.AtLeast(pod.Request.Enforcement) {
		return fmt.Errorf("pod %s wants enforcement %s and was given %s: delete it, to have it placed again", pod.Pod, pod.Request.Enforcement, cmp.Or(level, gpu.EnforcementAdvisory))
	}
	if err := p.ready(ctx, level); err != nil {
		return fmt.Errorf("container %s of pod %s waits: %w", container, pod.Pod, err)
	}
	return nil
}

// initMayStart says why an init container must not start that holds some slots. The
// kubelet does not tell whose it is, and puts the reason into an event of its pod.
func (p *Server) initMayStart(ctx context.Context, slots []gpu.SlotID) error {
	if err := p.ready(ctx, p.state.LevelOfSlots(slots)); err != nil {
		p.log.Warn("init container does not start", zap.String("node", p.cfg.Node), zap.Error(err))
		return asStatus(fmt.Errorf("the init container waits: %w", err))
	}
	return nil
}

// ready says why a level does not hold now.
func (p *Server) ready(ctx context.Context, level gpu.Enforcement) error {
	asking, cancel := context.WithTimeout(ctx, p.cfg.KubeletWait)
	defer cancel()
	return p.cfg.Ready(asking, level)
}

// unenforced reports of a container that it waits for its limit to hold.
func (p *Server) unenforced(pod placement.PodRef, err error) error {
	p.log.Warn("container does not start", zap.String("node", p.cfg.Node), zap.Stringer("pod", pod), zap.String("uid", pod.UID), zap.Error(err))
	p.events.Pod(pod, true, "GPUMemoryNotEnforced", err.Error())
	return asStatus(err)
}

// serve makes the MPS namespace of a container that is about to start, where the daemon has such:
// without it the container's program would run without MPS, and with no limit.
func (p *Server) serve(ctx context.Context, s allocation.State, grant allocation.Grant) error {
	if s.Inventory.MPS < 3 || p.cfg.Serve == nil {
		return nil
	}
	want := mps.Namespace{LimitMiB: int64(grant.Each) * s.Inventory.UnitMiB}
	if holder, ok := allocation.Find(s.Allocated, gpu.Memory, grant.Slots); ok {
		want.Percent = 100 // of an init container nobody tells: its environment does
		if cores := holder.Only(gpu.Cores); len(cores) > 0 {
			share, err := allocation.Resolve(s, gpu.Cores, cores)
			if err != nil {
				return err
			}
			want.Percent = share.Each
		}
	}
	if err := p.cfg.Serve(ctx, containers.Namespace(grant.Slots), want); err != nil {
		return fmt.Errorf("the container waits: %w", err)
	}
	return nil
}
