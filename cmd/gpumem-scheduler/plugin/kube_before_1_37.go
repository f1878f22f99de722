//go:build !kube1.37

package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// SelectVictimsOnNode returns the victims of one node for kube-scheduler's preemption.
func (p *Plugin) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, budgets []*policyv1.PodDisruptionBudget) ([]*v1.Pod, int, *fwk.Status) {
	before, whole := state.Clone(), info.Snapshot()
	victims, violations, status := p.Interface.SelectVictimsOnNode(ctx, state, pod, info, budgets)
	return p.cheaperVictims(ctx, before, pod, whole, budgets, victims, violations, status)
}
