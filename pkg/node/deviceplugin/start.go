package deviceplugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/process/operation"
)

// mayStart returns an error if a container must not start: its pod requests a stronger enforcement level than
// the pod has, or the limit in the container's environment would not hold.
func (p *Server) mayStart(ctx context.Context, s allocation.State, pod allocation.Pod, allocated allocation.Allocated, grant allocation.Grant) error {
	level := p.state.LevelOf(s, pod)
	if !level.AtLeast(pod.Request.Enforcement) {
		return fmt.Errorf("pod %s wants enforcement %s and was given %s: delete it, to have it placed again", pod.Pod, pod.Request.Enforcement, cmp.Or(level, gpu.EnforcementAdvisory))
	}
	has := p.state.Recorded(allocated)
	has.Level = cmp.Or(has.Level, level) // the pod's level is the weakest of its containers
	if err := p.ready(ctx, has, grant); err != nil {
		return fmt.Errorf("container %s of pod %s waits: %w", allocated.Container, pod.Pod, err)
	}
	return nil
}

// unlistedMayStart returns an error if a container of an unknown pod must not start. The pod of a plain init
// container is always unknown, because the kubelet does not list plain init containers. Other pods are unknown
// while the kubelet or the API server does not answer. The kubelet puts the error into an event on the pod.
func (p *Server) unlistedMayStart(ctx context.Context, s allocation.State, object string, grant allocation.Grant) error {
	has := p.state.Recorded(allocation.Allocated{Slots: grant.Slots})
	has.Level = cmp.Or(has.Level, levelOfUnlisted(s, grant))
	if err := p.ready(ctx, has, grant); err != nil {
		operation.Log(ctx, p.log).Warn("container does not start", zap.String("node", p.cfg.Node), zap.String("container", object), zap.Error(err))
		return asStatus(fmt.Errorf("the %s waits: %w", object, err))
	}
	return nil
}

// levelOfUnlisted returns a level for a container whose level is not recorded. It considers the pods on the
// grant's GPUs that have a container of the same size, and returns the strongest of the annotated levels. This
// can be the level of another pod. In that case the container may wait without need, but it never starts without
// its limit.
func levelOfUnlisted(s allocation.State, grant allocation.Grant) gpu.Enforcement {
	level := gpu.EnforcementAdvisory
	for _, pod := range s.Pods {
		same := func(c placement.Container) bool { return allocation.Amount(gpu.Memory, c) == len(grant.Slots) }
		on := func(d gpu.Device) bool { return slices.Contains(pod.Assignment.Devices(), d.UUID) }
		if slices.ContainsFunc(pod.Request.Containers.All(), same) && slices.ContainsFunc(grant.Devices, on) && !level.AtLeast(pod.Assignment.Enforcement) {
			level = pod.Assignment.Enforcement
		}
	}
	return level
}

// ready returns an error if gpumem cannot enforce the level now on the grant's GPUs, or no longer runs the
// container's MPS protocol.
func (p *Server) ready(ctx context.Context, has grants.Former, grant allocation.Grant) error {
	asking, cancel := context.WithTimeout(ctx, p.cfg.KubeletWait)
	defer cancel()
	if err := mps.CheckProtocol(has.MPS); err != nil {
		return err
	}
	return p.cfg.Ready(asking, has.Level, grant.Devices)
}

// unenforced logs that a container waits until its limit holds, and records an event on the pod.
func (p *Server) unenforced(ctx context.Context, pod placement.PodRef, err error) error {
	operation.Log(ctx, p.log).Warn("container does not start", zap.String("node", p.cfg.Node), zap.Stringer("pod", pod), zap.String("uid", pod.UID), zap.Error(err))
	p.events.Pod(pod, event.NotEnforced, err.Error())
	return asStatus(err)
}

// findAllocated returns the container that holds exactly these slots of memory.
func findAllocated(allocated []allocation.Allocated, ids []gpu.SlotID) (allocation.Allocated, bool) {
	want := slices.Sorted(slices.Values(ids))
	for _, h := range allocated {
		if slices.Equal(slices.Sorted(slices.Values(h.SlotsOf(gpu.Memory))), want) {
			return h, true
		}
	}
	return allocation.Allocated{}, false
}
