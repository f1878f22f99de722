//go:build kube1.35

package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// GetNodeHint returns a hint without a signature, so that kube-scheduler stores nothing for the next pod.
func (h *hintingFramework) GetNodeHint(ctx context.Context, pod *v1.Pod, state fwk.CycleState, number int64) (string, fwk.PodSignature) {
	if c := stored[*cycle](state); c != nil {
		return h.bestNode(ctx, c, state, pod), nil
	}
	return h.Framework.GetNodeHint(ctx, pod, state, number)
}
