//go:build kube1.35

package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// maxScore is the highest score of a plugin in Kubernetes 1.35.
const maxScore = fwk.MaxNodeScore

// newEvaluator returns an evaluator for Kubernetes 1.35.
func newEvaluator(h fwk.Handle, e *evictor, features feature.Features) *preemption.Evaluator {
	return preemption.NewEvaluator(Name, h, e, features.EnableAsyncPreemption)
}

// GetNodeHint returns a hint without a signature, so that kube-scheduler stores nothing for the next pod.
func (h *hintingFramework) GetNodeHint(ctx context.Context, pod *v1.Pod, state fwk.CycleState, cycle int64) (string, fwk.PodSignature) {
	if cycleOf(state) == nil {
		return h.Framework.GetNodeHint(ctx, pod, state, cycle)
	}
	return h.bestNode(ctx, state, pod), nil
}

// grouped reports whether kube-scheduler schedules the pod as part of a group.
func grouped(pod *v1.Pod) bool { return pod.Spec.WorkloadRef != nil }
