package evict

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/preemption"
)

func TestBudgets(t *testing.T) {
	labelled := func(namespace, name string, labels map[string]string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: labels}}
	}
	web := map[string]string{"app": "web"}
	pods := []*v1.Pod{
		labelled("ns", "a", web), labelled("ns", "b", web), labelled("ns", "other", map[string]string{"app": "db"}),
		labelled("ns", "plain", nil), labelled("elsewhere", "c", web),
	}
	budget := func(selector *metav1.LabelSelector) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "budget"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1},
		}
	}
	seen := budget(&metav1.LabelSelector{MatchLabels: web})
	seen.Status.DisruptedPods = map[string]metav1.Time{"a": {}}
	for name, tc := range map[string]struct {
		budget *policyv1.PodDisruptionBudget
		want   []preemption.Budget
	}{
		"by label, in its namespace": {
			budget(&metav1.LabelSelector{MatchLabels: web}), []preemption.Budget{{Pods: []string{"uid-a", "uid-b"}, Allowed: 1}},
		},
		"by expression": {
			budget(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"web"}}}}),
			[]preemption.Budget{{Pods: []string{"uid-other"}, Allowed: 1}},
		},
		"a pod that it has seen go": {seen, []preemption.Budget{{Pods: []string{"uid-b"}, Allowed: 1}}},
		"of none of these pods":     {budget(&metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}), nil},
		"no selector":               {budget(nil), nil},
		"an empty selector":         {budget(&metav1.LabelSelector{}), nil},
		"a broken selector": {
			budget(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}), nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Budgets([]*policyv1.PodDisruptionBudget{tc.budget}, pods)); diff != "" {
				t.Errorf("budgets (-want +got):\n%s", diff)
			}
		})
	}
}

// The API server applies budgets that kube-scheduler ignores, and evicts no pod with two budgets.
func TestLimits(t *testing.T) {
	web := map[string]string{"app": "web"}
	pods := []*v1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "a", Labels: web}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "plain", UID: "plain"}},
	}
	budget := func(selector *metav1.LabelSelector) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1},
		}
	}
	ofAll, ofWeb := budget(&metav1.LabelSelector{}), budget(&metav1.LabelSelector{MatchLabels: web})
	for name, tc := range map[string]struct {
		budgets []*policyv1.PodDisruptionBudget
		want    []preemption.Budget
	}{
		"an empty selector": {[]*policyv1.PodDisruptionBudget{ofAll}, []preemption.Budget{{Pods: []string{"a", "plain"}, Allowed: 1}}},
		"no selector":       {[]*policyv1.PodDisruptionBudget{budget(nil)}, nil},
		"three of one pod": {[]*policyv1.PodDisruptionBudget{ofWeb, ofAll, ofWeb}, []preemption.Budget{
			{Pods: []string{"a"}, Allowed: 1}, {Pods: []string{"a", "plain"}, Allowed: 1}, {Pods: []string{"a"}, Allowed: 1}, {Pods: []string{"a"}},
		}},
	} {
		if diff := cmp.Diff(tc.want, Limits(tc.budgets, pods)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
