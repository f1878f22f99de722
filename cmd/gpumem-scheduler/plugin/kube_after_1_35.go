//go:build !kube1.35

package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// maxScore is the highest score of a plugin from Kubernetes 1.36 on.
const maxScore = fwk.MaxScore

// newEvaluator is as Kubernetes makes one from 1.36 on.
func newEvaluator(h fwk.Handle, e *evictor, _ feature.Features) *preemption.Evaluator {
	return preemption.NewEvaluator(Name, h, e, e.Executor)
}

// GetNodeHint is where kube-scheduler asks for a hint, after all PreFilter plugins.
func (h *hinting) GetNodeHint(ctx context.Context, pod *v1.Pod, signature fwk.PodSignature, state fwk.CycleState, cycle int64) string {
	if dataOf(state) == nil {
		return h.Framework.GetNodeHint(ctx, pod, signature, state, cycle)
	}
	return h.hint(ctx, state, pod)
}

// grouped reports whether a pod is scheduled with others of a group, perhaps on some nodes alone.
func grouped(pod *v1.Pod) bool { return pod.Spec.SchedulingGroup != nil }
