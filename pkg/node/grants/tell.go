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

// tellCorrected logs and counts a corrected assignment, and records an event on the pod.
func (r *Reconciler) tellCorrected(ctx context.Context, c allocation.Correction, was, is placement.Assignment, s allocation.State) {
	ref, inv := c.Pod.Pod, s.Inventory
	operation.Log(ctx, r.log).Info("assignment corrected", zap.String("node", r.cfg.Node), zap.Stringer("pod", ref), zap.String("uid", ref.UID),
		zap.Any("devices", is.Devices()), zap.Any("was", was.Devices()), zap.Int64("units", int64(c.Pod.Request.Units())))
	switch {
	case planned(c.Pod) && (was.None() || c.Pod.Plan.SameDevices(is)):
		r.metrics.Corrected(ReasonPlaced)
		r.events.Pod(ref, event.Restored, "has "+describe(is, inv)+", which is written again: somebody had changed the pod's assignment, or taken it away")
	case was.None():
		r.metrics.Corrected(ReasonPlaced)
		r.events.Pod(ref, event.Placed, "placed on "+describe(is, inv)+" by the device plugin of its node: no scheduler of gpumem had placed it")
	case !c.Asked():
		r.metrics.Corrected(ReasonHeld)
		r.events.Pod(ref, event.Restored, "has "+describe(is, inv)+" and not "+describe(was, inv)+", as was written: the number of its GPUs was changed after the kubelet had given it those")
	case hasSlots(s, c.Pod.Pod):
		r.metrics.Corrected(ReasonHeld)
		r.events.Pod(ref, event.Swapped, "has "+describe(is, inv)+" and not "+describe(was, inv)+", as was written: the kubelet took it for a pod of the same size")
	default:
		r.metrics.Corrected(ReasonPlanned)
		r.events.Pod(ref, event.Swapped, "is to have "+describe(is, inv)+" instead of "+describe(was, inv)+", which the kubelet gave to a pod of the same size")
	}
}

// tellLevel logs a corrected level, and records an event on the pod.
func (r *Reconciler) tellLevel(ctx context.Context, ref placement.PodRef, from, to placement.Assignment) {
	level, was := to.Enforcement, cmp.Or(from.Enforcement, gpu.EnforcementAdvisory)
	operation.Log(ctx, r.log).Info("level corrected", zap.String("node", r.cfg.Node), zap.Stringer("pod", ref), zap.String("uid", ref.UID),
		zap.String("level", string(level)), zap.String("was", string(was)))
	change := event.LevelRaised
	if !level.AtLeast(was) {
		change = event.LevelLowered
	}
	r.events.Pod(ref, change, fmt.Sprintf("is limited to its grant at level %s: the node had %s when the pod was bound to it", level, was))
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
