//go:build !kube1.37

package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// SelectVictimsOnNode returns the victims of one node for kube-scheduler's preemption.
func (e *evictor) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, budgets []*policyv1.PodDisruptionBudget) ([]*v1.Pod, int, *fwk.Status) {
	s := e.selectVictims(ctx, state, pod, info, budgets, func() (s selected) {
		s.victims, s.violations, s.status = e.DefaultPreemption.SelectVictimsOnNode(ctx, state, pod, info, budgets)
		return s
	})
	return s.victims, s.violations, s.status
}
