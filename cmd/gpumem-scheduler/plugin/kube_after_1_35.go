//go:build !kube1.35

package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// GetNodeHint returns a hint. kube-scheduler calls it after all PreFilter plugins. A pod with GPU memory in a
// group gets no hint, because kube-scheduler may schedule the group only on some nodes.
func (h *hintingFramework) GetNodeHint(ctx context.Context, pod *v1.Pod, signature fwk.PodSignature, state fwk.CycleState, number int64) string {
	if c := stored[*cycle](state); c != nil && pod.Spec.SchedulingGroup == nil {
		return h.bestNode(ctx, c, state, pod)
	}
	return h.Framework.GetNodeHint(ctx, pod, signature, state, number) // "" without a signature
}
