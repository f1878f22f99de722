package decider

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/preemption"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/evict"
)

// Cheaper returns pods of a node, in the node's order, whose eviction costs less than that of
// the victims, and without whom the pod fits on a GPU; and for how many of them a budget
// leaves nothing.
func (d *Decider) Cheaper(c *Cycle, node Node, victims []*v1.Pod, pdbs []*policyv1.PodDisruptionBudget) (pods []*v1.Pod, violations int, ok bool) {
	known := d.Binder.Cache.Look(node.Name)
	if known == nil {
		return nil, 0, false
	}
	state, differs := d.differing(node, known)
	if !differs {
		state = *known
	}
	all := slices.Collect(node.Pods)
	budgets := budgetsOf(pdbs, all)
	chosen, ok := preemption.Preempt(c.Request, state, nil, budgets)
	if !ok || len(chosen.Pods) == 0 {
		return nil, 0, false
	}
	there, holdings := state.Holdings(), make([]placement.Holding, len(victims))
	for i, victim := range victims {
		same := func(h placement.Holding) bool { return h.Pod.UID == string(victim.UID) && !h.Request.Empty() }
		if at := slices.IndexFunc(there, same); at >= 0 {
			holdings[i] = there[at] // in the node's unit
		} else {
			holdings[i], _ = d.Binder.Names.Holding(victim)
		}
	}
	if preemption.Cheaper(chosen.Pods, holdings, budgets) >= 0 {
		return nil, 0, false
	}
	for _, pod := range all {
		if placement.HasPod(chosen.Pods, placement.Holding{Pod: api.Ref(pod)}) {
			pods = append(pods, pod)
		}
	}
	return pods, chosen.Violations, len(pods) == len(chosen.Pods)
}

// budgetsOf reads the budgets that pods are under.
func budgetsOf(pdbs []*policyv1.PodDisruptionBudget, pods []*v1.Pod) (out []preemption.Budget) {
	byNamespace := make(map[string][]*v1.Pod)
	for _, pod := range pods {
		byNamespace[pod.Namespace] = append(byNamespace[pod.Namespace], pod)
	}
	for namespace, pods := range byNamespace {
		in := slices.DeleteFunc(slices.Clone(pdbs), func(b *policyv1.PodDisruptionBudget) bool { return b.Namespace != namespace })
		out = append(out, evict.Budgets(in, pods)...)
	}
	return out
}
