package evict

import (
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpumem/gpumem/pkg/core/preemption"
)

// Budgets reads which of the pods each PodDisruptionBudget protects, as
// kube-scheduler does: one without a selector, or with one that is empty or
// broken, protects none, and a pod whose disruption it has seen already is no
// longer under it. (k8s.io/kubernetes/pkg/scheduler/framework/plugins/
// defaultpreemption, filterPodsWithPDBViolation)
func Budgets(budgets []*policyv1.PodDisruptionBudget, pods []*v1.Pod) []preemption.Budget {
	var out []preemption.Budget
	for _, b := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || selector.Empty() {
			continue
		}
		budget := preemption.Budget{Allowed: int(b.Status.DisruptionsAllowed)}
		for _, pod := range pods {
			_, seen := b.Status.DisruptedPods[pod.Name]
			if pod.Namespace == b.Namespace && len(pod.Labels) > 0 && !seen && selector.Matches(labels.Set(pod.Labels)) {
				budget.Pods = append(budget.Pods, string(pod.UID))
			}
		}
		if len(budget.Pods) > 0 {
			out = append(out, budget)
		}
	}
	return out
}
