//go:build !kube1.35

package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// GetNodeHint returns a hint. kube-scheduler calls it after all PreFilter plugins. A pod of a group gets no
// hint, because kube-scheduler may schedule the group only on some nodes.
func (h *hintingFramework) GetNodeHint(ctx context.Context, pod *v1.Pod, signature fwk.PodSignature, state fwk.CycleState, number int64) string {
	c := stored[*cycle](state)
	switch {
	case c == nil:
		return h.Framework.GetNodeHint(ctx, pod, signature, state, number)
	case pod.Spec.SchedulingGroup != nil:
		return ""
	}
	return h.bestNode(ctx, c, state, pod)
}
