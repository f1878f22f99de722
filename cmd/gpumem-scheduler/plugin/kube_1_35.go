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

// newEvaluator is as Kubernetes 1.35 makes one.
func newEvaluator(h fwk.Handle, e *evictor, features feature.Features) *preemption.Evaluator {
	return preemption.NewEvaluator(Name, h, e, features.EnableAsyncPreemption)
}

// GetNodeHint returns no signature: then nothing is stored for the next pod.
func (h *hinting) GetNodeHint(ctx context.Context, pod *v1.Pod, state fwk.CycleState, cycle int64) (string, fwk.PodSignature) {
	if dataOf(state) == nil {
		return h.Framework.GetNodeHint(ctx, pod, state, cycle)
	}
	return h.hint(ctx, state, pod), nil
}

// grouped reports whether a pod is scheduled with others of a group.
func grouped(pod *v1.Pod) bool { return pod.Spec.WorkloadRef != nil }
