//go:build kube1.35

package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// What Kubernetes 1.35 has in another way than the others: its own highest score, and preemption.

const maxScore = fwk.MaxNodeScore

func newEvaluator(h fwk.Handle, e *evictor, features feature.Features) *preemption.Evaluator {
	return preemption.NewEvaluator(Name, h, e, features.EnableAsyncPreemption)
}

// SelectVictimsOnNode is what kube-scheduler's preemption asks of each node.
func (e *evictor) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, budgets []*policyv1.PodDisruptionBudget) ([]*v1.Pod, int, *fwk.Status) {
	s := e.onNode(ctx, state, pod, info, budgets, func() (s selected) {
		s.victims, s.violations, s.status = e.DefaultPreemption.SelectVictimsOnNode(ctx, state, pod, info, budgets)
		return s
	})
	return s.victims, s.violations, s.status
}
