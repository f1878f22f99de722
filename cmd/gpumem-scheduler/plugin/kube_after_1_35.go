//go:build !kube1.35

package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// maxScore is the highest score of a plugin since Kubernetes 1.36.
const maxScore = fwk.MaxScore

// newEvaluator returns an evaluator for Kubernetes 1.36 and later.
func newEvaluator(h fwk.Handle, e *evictor, _ feature.Features) *preemption.Evaluator {
	return preemption.NewEvaluator(Name, h, e, e.Executor)
}

// GetNodeHint returns a hint. kube-scheduler calls it after all PreFilter plugins.
func (h *hintingFramework) GetNodeHint(ctx context.Context, pod *v1.Pod, signature fwk.PodSignature, state fwk.CycleState, cycle int64) string {
	if cycleOf(state) == nil {
		return h.Framework.GetNodeHint(ctx, pod, signature, state, cycle)
	}
	return h.bestNode(ctx, state, pod)
}

// grouped reports whether kube-scheduler schedules the pod as part of a group, perhaps only on some nodes.
func grouped(pod *v1.Pod) bool { return pod.Spec.SchedulingGroup != nil }
