package grants

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/process/operation"
)

// reportCorrected logs and counts a corrected assignment, and records an event on the pod.
func (r *Reconciler) reportCorrected(ctx context.Context, c allocation.Correction, previous, current placement.Assignment, s allocation.State) {
	ref, inv := c.Pod.Pod, s.Inventory
	operation.Log(ctx, r.log).Info("assignment corrected", zap.String("node", r.cfg.Node), zap.Stringer("pod", ref), zap.String("uid", ref.UID),
		zap.Any("devices", current.Devices()), zap.Any("was", previous.Devices()), zap.Int64("units", int64(c.Pod.Request.Units())))
	switch {
	case planned(c.Pod) && (previous.None() || c.Pod.Plan.SameDevices(current)):
		r.metrics.Corrected(ReasonPlaced)
		r.events.Pod(ref, event.Restored, "has "+describe(current, inv)+", which is written again: somebody had changed the pod's assignment, or taken it away")
	case previous.None():
		r.metrics.Corrected(ReasonPlaced)
		r.events.Pod(ref, event.Placed, "placed on "+describe(current, inv)+" by the device plugin of its node: no scheduler of gpumem had placed it")
	case !c.HasRequestedCount():
		r.metrics.Corrected(ReasonHeld)
		r.events.Pod(ref, event.Restored, "has "+describe(current, inv)+" and not "+describe(previous, inv)+", as was written: the number of its GPUs was changed after the kubelet had given it those")
	case hasSlots(s, c.Pod.Pod):
		r.metrics.Corrected(ReasonHeld)
		r.events.Pod(ref, event.Swapped, "has "+describe(current, inv)+" and not "+describe(previous, inv)+", as was written: the kubelet took it for a pod of the same size")
	default:
		r.metrics.Corrected(ReasonPlanned)
		r.events.Pod(ref, event.Swapped, "is to have "+describe(current, inv)+" instead of "+describe(previous, inv)+", which the kubelet gave to a pod of the same size")
	}
}

// reportLevel logs a corrected level, and records an event on the pod.
func (r *Reconciler) reportLevel(ctx context.Context, ref placement.PodRef, from, to placement.Assignment) {
	level, previous := to.Enforcement, cmp.Or(from.Enforcement, gpu.EnforcementAdvisory)
	operation.Log(ctx, r.log).Info("level corrected", zap.String("node", r.cfg.Node), zap.Stringer("pod", ref), zap.String("uid", ref.UID),
		zap.String("level", string(level)), zap.String("was", string(previous)))
	change := event.LevelRaised
	if !level.AtLeast(previous) {
		change = event.LevelLowered
	}
	r.events.Pod(ref, change, fmt.Sprintf("is limited to its grant at level %s: the node had %s when the pod was bound to it", level, previous))
}

// describe returns the GPUs of an assignment for messages.
func describe(a placement.Assignment, inv gpu.Inventory) string {
	var parts []string
	for _, uuid := range a.Devices() {
		index := "?"
		if d, ok := inv.Device(uuid); ok {
			index = strconv.Itoa(d.Index)
		}
		parts = append(parts, fmt.Sprintf("GPU %s (%s)", index, uuid))
	}
	return strings.Join(parts, ", ")
}
