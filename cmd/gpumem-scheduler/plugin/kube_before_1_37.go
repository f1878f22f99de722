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
	better := p.betterVictims(ctx, state, pod, info, budgets)
	return better(p.Interface.SelectVictimsOnNode(ctx, state, pod, info, budgets))
}
