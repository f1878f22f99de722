package e2e

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// replicaSet makes a ReplicaSet of one pod, and takes it away at the end of the test.
func (e *env) replicaSet(name string, pod *v1.Pod) {
	e.Helper()
	labels := map[string]string{"app": name}
	sets := e.client.AppsV1().ReplicaSets(e.namespace)
	pod.Spec.TerminationGracePeriodSeconds = new(int64(1))
	_, err := sets.Create(e.ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: pod.Annotations}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		e.Fatal(err)
	}
	e.atEnd(func() {
		if err := sets.Delete(e.ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			e.Errorf("delete replica set %s: %v", name, err)
		}
	})
}

// runningOf waits until the pod of a ReplicaSet runs, and returns its name.
func (e *env) runningOf(replicaSet string) (name string) {
	e.Helper()
	e.eventually("the pod of replica set "+replicaSet+" runs", func() (bool, string) {
		list, err := e.client.CoreV1().Pods(e.namespace).List(e.ctx, metav1.ListOptions{LabelSelector: "app=" + replicaSet})
		if err != nil || len(list.Items) != 1 || !isReady(list.Items[0]) {
			return false, fmt.Sprint(err, len(list.Items))
		}
		name = list.Items[0].Name
		return true, ""
	})
	return name
}

// Two GPUs with 9 GiB free on each, and a pod that wants 10: kube-scheduler sees
// 18 and preempts nobody. One of the two pods on them nothing would make again.
func TestDefragMakesRoomForAWaitingPod(t *testing.T) {
	e := setup(t)
	at := onNode("node1")
	e.replicaSet("web", e.pod("web", 5, at))
	web := e.runningOf("web")
	e.create(e.pod("bare", 5, at, annotated("policy", "spread")))
	bare := e.running("bare")
	was, other := e.agree(web, "main")[0], e.agree("bare", "main")[0]
	if was == other {
		t.Fatalf("both are on %s, want a GPU for each", was)
	}
	e.create(e.pod("large", 10, at))
	e.pending("large", "fragmented")

	plan, err := suite.stack.Inspect(e.ctx, e.cluster, "defrag", e.namespace+"/large")
	if err != nil || !strings.Contains(plan, web) || strings.Contains(plan, "bare") || !strings.Contains(plan, "Nothing was evicted") {
		t.Fatalf("error %v; plan:\n%s", err, plan)
	}
	e.untouched(bare, e.get(web))

	done, err := suite.stack.Inspect(e.ctx, e.cluster, "defrag", e.namespace+"/large", "--apply", "--timeout", "60s")
	if err != nil || !strings.Contains(done, "pod/"+web+" evicted") {
		t.Fatalf("error %v; output:\n%s", err, done)
	}
	e.running("large")
	if got := e.agree("large", "main")[0]; got != was {
		t.Errorf("the pod is on %s, want %s", got, was)
	}
	again := e.runningOf("web")
	if got := e.agree(again, "main")[0]; again == web || got != other {
		t.Errorf("%s, which came in place of %s, is on %s, want %s", again, web, got, other)
	}
	e.untouched(bare)
}

// Without defrag, kube-scheduler with the extender evicts no pod for a more important one: it sees
// room in the sum of both GPUs. gpumem-scheduler evicts by itself, so there the pod is of a class
// that never does, for which no pod goes that could not come back. The pod that is made in place of the evicted one does not take the
// room back, and the other is left alone.
func TestDefragForAnImportantPodCostsWhatThePlanSays(t *testing.T) {
	for name, tc := range map[string]struct {
		each, urgent int64
		comesBack    bool // the evicted pod, beside the other
	}{
		"no room elsewhere":     {9, 10, false},
		"room on the other GPU": {6, 12, true},
	} {
		if suite.stack != nil && suite.stack.Plugin() && !tc.comesBack {
			continue
		}
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			at, spread := onNode("node1"), annotated("policy", "spread")
			before := make(map[string]*v1.Pod)
			for _, set := range []string{"low-a", "low-b"} {
				e.replicaSet(set, e.pod(set, tc.each, at, spread))
				before[set] = e.get(e.runningOf(set))
			}
			policy := v1.PreemptLowerPriority
			if suite.stack.Plugin() {
				policy = v1.PreemptNever
			}
			e.create(e.pod("urgent", tc.urgent, at, e.ofClass(100, policy)))
			e.pending("urgent", "fragmented")
			done, err := suite.stack.Inspect(e.ctx, e.cluster, "defrag", e.namespace+"/urgent", "--apply", "--timeout", "60s")
			if err != nil || strings.Count(done, " evicted\n") != 1 {
				t.Fatalf("error %v; output:\n%s", err, done)
			}
			e.running("urgent")
			evicted, stayed := "low-a", "low-b"
			if strings.Contains(done, "pod/low-b") {
				evicted, stayed = stayed, evicted
			}
			e.untouched(before[stayed])
			if tc.comesBack {
				e.runningOf(evicted)
				e.untouched(before[stayed])
			}
		})
	}
}

// kube-scheduler does not hear that memory is kept for another pod no more, and its own flush
// comes after five minutes: the extender has it try the pod again that fits by now.
func TestAPodIsTriedAgainWhenNothingIsKeptForAnother(t *testing.T) {
	e := setup(t)
	at, spread := onNode("node1"), annotated("policy", "spread")
	e.create(e.pod("half", 8, at, spread))
	e.running("half")
	e.create(e.pod("most", 12, at, spread))
	e.running("most")
	free, other := e.agree("half", "main")[0], e.agree("most", "main")[0]
	if free == other {
		t.Fatalf("both are on %s, want a GPU for each", free)
	}
	e.create(e.pod("vip", 10, e.ofPriority(100), func(pod *v1.Pod) { pod.Spec.SchedulerName = "another" }))
	conditions := func(of ...v1.PodCondition) func(*v1.Pod) {
		return func(pod *v1.Pod) { pod.Status.Conditions = of }
	}
	e.changeStatus("vip", conditions(v1.PodCondition{Type: "GPUMemoryRoomMade", Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(), Message: fmt.Sprintf(`{"v":1,"node":"node1","gpus":[%q]}`, free)}))
	e.create(e.pod("waits", 5, at))
	e.pending("waits", "reserved for pods nominated to this node: 1")

	e.changeStatus("vip", conditions())
	e.running("waits")
	if got := e.agree("waits", "main")[0]; got != free {
		t.Errorf("the pod is on %s, want %s", got, free)
	}
	t.Logf("woken at %q", e.get("waits").Annotations["gpumem.dev/room-made"])
}
