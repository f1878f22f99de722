package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// kubectl runs kubectl in the test's namespace.
func (e *env) kubectl(args ...string) (string, error) {
	return suite.stack.Kubectl(e.ctx, e.cluster, append([]string{"--namespace", e.namespace}, args...)...)
}

// applyForTest applies a sample of which something is in no namespace, and takes
// it away at the end of the test.
func (e *env) applyForTest(sample string) {
	e.Helper()
	file := suite.stack.Sample(sample)
	e.atEnd(func() {
		if _, err := e.kubectl("delete", "--ignore-not-found", "--filename", file); err != nil {
			e.Errorf("take %s away: %v", sample, err)
		}
	})
	e.apply(sample)
}

// ofPriority gives a pod a priority, with a class that lives as long as the test.
func (e *env) ofPriority(value int32) func(*v1.Pod) {
	e.Helper()
	return e.ofClass(value, v1.PreemptLowerPriority)
}

func (e *env) ofClass(value int32, policy v1.PreemptionPolicy) func(*v1.Pod) {
	e.Helper()
	name := fmt.Sprintf("%s-%d", e.namespace, value)
	classes := e.client.SchedulingV1().PriorityClasses()
	_, err := classes.Create(e.ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, PreemptionPolicy: &policy}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		e.Fatal(err)
	}
	e.atEnd(func() {
		if err := classes.Delete(e.ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			e.Errorf("delete priority class %s: %v", name, err)
		}
	})
	of := func(pod *v1.Pod) { pod.Spec.PriorityClassName = name }
	e.eventually("pods may be of the new priority class", func() (bool, string) {
		_, err := e.client.CoreV1().Pods(e.namespace).Create(e.ctx, e.pod("of-the-class", 0, of), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil, fmt.Sprint(err)
	})
	return of
}

// untouched fails the test if a pod is no longer what it was.
func (e *env) untouched(pods ...*v1.Pod) {
	e.Helper()
	for _, before := range pods {
		after := e.get(before.Name)
		if after.UID != before.UID || after.DeletionTimestamp != nil {
			e.Errorf("pod %s was evicted: %v", before.Name, e.events(before.Name))
		}
		if diff := cmp.Diff(containerIDs(before), containerIDs(after)); diff != "" {
			e.Errorf("containers of pod %s (-before +after):\n%s", before.Name, diff)
		}
	}
}

// By the sum of node2, batch would go: it is the least important, and without it
// 23 GiB would be free. But it is on the T4, and no GPU would have 20.
func TestAnImportantPodEvictsFromOneGPU(t *testing.T) {
	e := setup(t)
	at := onNode("node2")
	e.create(e.pod("train", 50, at, e.ofPriority(20)))
	train := e.running("train")
	e.create(e.pod("notebook", 20, at, e.ofPriority(10)))
	notebook := e.running("notebook")
	e.create(e.pod("batch", t4, at, annotated("gpu-model", "*T4*")))
	batch := e.running("batch")
	if got := e.books()["node2"]; got[e.gpu("node2", 0)] != 70 || got[e.gpu("node2", 1)] != t4 {
		t.Fatalf("node2 holds %v, want 70 on the A100 and %d on the T4", got, t4)
	}
	// node1 is too small for the sample.
	e.applyForTest("priority.yaml")
	urgent := e.running("urgent")
	if got := e.agree("urgent", "sample"); urgent.Spec.NodeName != "node2" || got[0] != e.gpu("node2", 0) {
		t.Errorf("it is on %v of %s, want the A100 of node2", got, urgent.Spec.NodeName)
	}
	e.untouched(train, batch)
	e.gone("notebook")
	if events := strings.Join(e.events("notebook"), "\n"); !strings.Contains(events, "Preempted by pod "+string(urgent.UID)) {
		t.Errorf("events of notebook (%s):\n%s", notebook.UID, events)
	}
	said, err := suite.stack.Inspect(e.ctx, e.cluster, "explain", "-n", e.namespace, "urgent")
	if want := "Evicted:   " + e.namespace + "/notebook, by preemption "; err != nil || !strings.Contains(said, want) {
		t.Errorf("explain lacks %q: %v\n%s", want, err, said)
	}
}

// Two pods of one GPU, and not one of each; and none that a budget protects.
func TestEvictionKeepsToDisruptionBudgets(t *testing.T) {
	e := setup(t)
	at := onNode("node1")
	labelled := func(pod *v1.Pod) { pod.Labels = map[string]string{"app": "guarded"} }
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}
	both := intstr.FromInt32(2)
	budgets := e.client.PolicyV1().PodDisruptionBudgets(e.namespace)
	if _, err := budgets.Create(e.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "guard"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &both, Selector: selector},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.create(e.pod("guarded-a", 6, at, labelled))
	e.create(e.pod("guarded-b", 6, at, labelled))
	guardedA, guardedB := e.running("guarded-a"), e.running("guarded-b")
	e.create(e.pod("low-a", 7, at, e.ofPriority(5)))
	e.create(e.pod("low-b", 7, at, e.ofPriority(5)))
	e.running("low-a")
	e.running("low-b")
	if a, b := e.agree("guarded-a", "main")[0], e.agree("low-a", "main")[0]; a != e.agree("guarded-b", "main")[0] || b != e.agree("low-b", "main")[0] || a == b {
		t.Fatalf("guarded pods are on %s, the others on %s, want a GPU for each kind", a, b)
	}
	e.eventually("the budget is worked out", func() (bool, string) {
		budget, err := budgets.Get(e.ctx, "guard", metav1.GetOptions{})
		return err == nil && budget.Status.CurrentHealthy == 2, fmt.Sprint(budget.Status, err)
	})
	e.create(e.pod("vip", t4, at, e.ofPriority(100)))
	e.running("vip")
	e.untouched(guardedA, guardedB)
	e.gone("low-a")
	e.gone("low-b")
}

// While those who were evicted still terminate, and after, nobody of lower
// priority takes the room. This pod nobody binds, so that there is time to look.
func TestTheRoomForANominatedPodIsKept(t *testing.T) {
	e := setup(t)
	e.create(e.pod("vip", t4, e.ofPriority(100), func(pod *v1.Pod) { pod.Spec.SchedulerName = "nobody" }))
	e.changeStatus("vip", func(pod *v1.Pod) { pod.Status.NominatedNodeName = "node1" })
	e.create(e.pod("filler", 4, onNode("node1"), annotated("policy", "exclusive")))
	e.running("filler")
	e.create(e.pod("late", 2, onNode("node1")))
	e.pending("late", "GPU", "reserved for pods nominated to this node: 1")
	for _, n := range e.inspect().Nodes {
		kept := 0
		for _, g := range n.GPUs {
			kept += len(g.Kept)
		}
		if want := map[string]int{"node1": 1}[n.Name]; kept != want {
			t.Errorf("kubectl inspect gpumem shows room on %d GPUs of %s as kept, want %d", kept, n.Name, want)
		}
	}
	e.create(e.pod("higher", 2, onNode("node1"), e.ofPriority(101)))
	e.running("higher")
	e.delete("higher", 0)
	e.gone("higher")
	e.delete("vip", 0)
	e.running("late")
}

// The node has enough in all, and no GPU has. gpumem-scheduler evicts from one GPU. What an
// extender cannot do: kube-scheduler sees no pod to evict, and does not ask.
func TestFragmentationAloneEvictsFromOneGPUOrNobody(t *testing.T) {
	e := setup(t)
	at := onNode("node1")
	e.create(e.pod("filler-a", t4-6, at, e.ofPriority(10)))
	e.create(e.pod("filler-b", t4-6, at))
	fillers := []*v1.Pod{e.running("filler-a"), e.running("filler-b")}
	e.create(e.pod("vip", 10, at, e.ofPriority(100)))
	if suite.stack.Plugin() {
		e.running("vip")
		e.gone("filler-b")
		e.untouched(fillers[0])
		return
	}
	e.pending("vip", "needs 10 GiB on one GPU; free: GPU0 6, GPU1 6 (12 in all, fragmented)",
		`preemption: expected at least one victim pod on node "node1"`)
	e.untouched(fillers...)
}
