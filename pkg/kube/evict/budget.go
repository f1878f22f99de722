package evict

import (
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpumem/gpumem/pkg/core/preemption"
)

// Budgets returns the pods that each PodDisruptionBudget protects in kube-scheduler's view. A budget
// without a selector, or with an empty or malformed one, protects no pod. A pod whose disruption the
// budget has recorded is no longer protected. (filterPodsWithPDBViolation in
// k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption)
func Budgets(budgets []*policyv1.PodDisruptionBudget, pods []*v1.Pod) []preemption.Budget {
	return read(budgets, pods, func(b *policyv1.PodDisruptionBudget, selector labels.Selector, pod *v1.Pod) bool {
		_, seen := b.Status.DisruptedPods[pod.Name]
		return !selector.Empty() && len(pod.Labels) > 0 && !seen
	})
}

// Limits returns the budgets as the API server applies them to evictions. An empty selector matches all
// pods of the namespace, and a pod with several budgets is never evicted. (EvictionREST in
// k8s.io/kubernetes/pkg/registry/core/pod/storage)
func Limits(budgets []*policyv1.PodDisruptionBudget, pods []*v1.Pod) []preemption.Budget {
	out := read(budgets, pods, func(*policyv1.PodDisruptionBudget, labels.Selector, *v1.Pod) bool { return true })
	under := make(map[string]int) // number of budgets by pod
	for _, b := range out {
		for _, uid := range b.Pods {
			if under[uid]++; under[uid] == 2 {
				out = append(out, preemption.Budget{Pods: []string{uid}})
			}
		}
	}
	return out
}

// read converts PodDisruptionBudgets. A budget lists the pods that match its selector and for which the
// parameter under returns true.
func read(budgets []*policyv1.PodDisruptionBudget, pods []*v1.Pod, under func(*policyv1.PodDisruptionBudget, labels.Selector, *v1.Pod) bool) []preemption.Budget {
	var out []preemption.Budget
	for _, b := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue
		}
		budget := preemption.Budget{Allowed: int(b.Status.DisruptionsAllowed)}
		for _, pod := range pods {
			if pod.Namespace == b.Namespace && selector.Matches(labels.Set(pod.Labels)) && under(b, selector, pod) {
				budget.Pods = append(budget.Pods, string(pod.UID))
			}
		}
		if len(budget.Pods) > 0 {
			out = append(out, budget)
		}
	}
	return out
}
