//go:build kube1.37

package plugin

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// SelectVictimsOnNode returns the victims of one node for kube-scheduler's preemption. If pods are evicted in
// groups, which may span several nodes, kube-scheduler's own selection applies.
func (p *Plugin) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, possible []*preemption.DomainVictim, budgets []*policyv1.PodDisruptionBudget) ([]*v1.Pod, int, *fwk.Status) {
	before, whole := state.Clone(), info.Snapshot()
	victims, violations, status := p.Interface.SelectVictimsOnNode(ctx, state, pod, info, possible, budgets)
	if slices.ContainsFunc(possible, func(v *preemption.DomainVictim) bool { return len(v.Pods()) > 1 }) {
		return victims, violations, status
	}
	return p.cheaperVictims(ctx, before, pod, whole, budgets, victims, violations, status)
}
