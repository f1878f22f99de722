package decider

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/preemption"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/evict"
)

// Victims returns the pods to evict from a node, instead of the pods that kube-scheduler proposes, so that
// the pod fits on a GPU. Result beyond is the number of proposed pods whose eviction violates a budget.
// Victims returns false if no eviction helps.
func (d *Decider) Victims(c *Cycle, name string, proposed []*v1.Pod, budgetsIn func(namespace string) []*policyv1.PodDisruptionBudget) (chosen preemption.Victims, beyond int, ok bool) {
	node, ok := d.Cache.Node(name)
	if !ok {
		return preemption.Victims{}, 0, false
	}
	node = decide.Reserved(node, c.Pod, c.Request, c.Fallback)
	var pods []*v1.Pod
	for _, h := range node.Holdings() {
		if pod := d.Cluster.Pod(h.Pod.Namespace, h.Pod.Name); pod != nil && string(pod.UID) == h.Pod.UID {
			pods = append(pods, pod)
		}
	}
	budgets, before := budgetsOf(pods, budgetsIn), d.holdings(node, proposed)
	chosen, ok = preemption.Preempt(c.Request, node, before, budgets)
	return chosen, preemption.Violations(before, budgets), ok
}

// Cheaper returns pods of a node, in the node's order. Their eviction lets the pod fit on a GPU and costs
// less than the eviction of the given victims. Result violations is the number of these pods whose budgets
// allow no eviction. Cheaper returns false if there are no such pods.
func (d *Decider) Cheaper(c *Cycle, node Node, victims []*v1.Pod, pdbs []*policyv1.PodDisruptionBudget) (pods []*v1.Pod, violations int, ok bool) {
	known := d.Cache.GetNode(node.Name)
	if known == nil {
		return nil, 0, false
	}
	state, differs := d.differing(node, known)
	if !differs {
		state = *known
	}
	all := slices.Collect(node.Pods)
	budgets := budgetsOf(all, func(namespace string) []*policyv1.PodDisruptionBudget {
		return slices.DeleteFunc(slices.Clone(pdbs), func(b *policyv1.PodDisruptionBudget) bool { return b.Namespace != namespace })
	})
	chosen, ok := preemption.Preempt(c.Request, state, nil, budgets)
	if !ok || len(chosen.Pods) == 0 || preemption.Cheaper(chosen.Pods, d.holdings(state, victims), budgets) >= 0 {
		return nil, 0, false
	}
	for _, pod := range all {
		if placement.HasPod(chosen.Pods, placement.Holding{Pod: api.Ref(pod)}) {
			pods = append(pods, pod)
		}
	}
	return pods, chosen.Violations, len(pods) == len(chosen.Pods)
}

// holdings returns the requests of pods. The requests of pods on the node are in the node's unit.
func (d *Decider) holdings(node placement.Node, pods []*v1.Pod) []placement.Holding {
	known, out := node.Holdings(), make([]placement.Holding, len(pods))
	for i, pod := range pods {
		same := func(h placement.Holding) bool { return h.Pod.UID == string(pod.UID) && !h.Request.Empty() }
		if at := slices.IndexFunc(known, same); at >= 0 {
			out[i] = known[at]
		} else {
			out[i], _ = d.Names.Holding(pod) // the cache also has only the readable part
		}
	}
	return out
}

// budgetsOf returns the budgets that select any of the pods.
func budgetsOf(pods []*v1.Pod, budgetsIn func(namespace string) []*policyv1.PodDisruptionBudget) (out []preemption.Budget) {
	byNamespace := make(map[string][]*v1.Pod)
	for _, pod := range pods {
		byNamespace[pod.Namespace] = append(byNamespace[pod.Namespace], pod)
	}
	for namespace, pods := range byNamespace {
		out = append(out, evict.Budgets(budgetsIn(namespace), pods)...)
	}
	return out
}
