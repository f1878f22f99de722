package scheduler

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// boundJustNow binds a pod to GPUs of a node. The kubelet has not admitted it yet.
func boundJustNow(t testing.TB, node *v1.Node, indexes ...int) option {
	return func(p *v1.Pod) {
		on(t, node, indexes...)(p)
		p.Status.StartTime, p.Status.Phase = nil, v1.PodPending
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}
	}
}

// sentTo has a pod name its node itself.
func sentTo(node string) option { return func(p *v1.Pod) { p.Spec.NodeName = node } }

// leavingGPU has a pod be moved from a GPU of a node, where it counts until the others are moved too.
func leavingGPU(t testing.TB, node string, index int) option {
	return func(p *v1.Pod) {
		key := names(t).Assignment()
		v := p.Annotations[key]
		p.Annotations[key] = fmt.Sprintf(`%s,"leaving":[%q]}`, v[:len(v)-1], uuid(node, index))
	}
}

// container adds a second one to a pod.
func container(t testing.TB, units int64) option {
	return func(p *v1.Pod) {
		amount := v1.ResourceList{names(t).GPUMem(): *resource.NewQuantity(units, resource.DecimalSI)}
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "second", Image: "main", Resources: v1.ResourceRequirements{Requests: amount, Limits: amount}})
	}
}

// evicts reports whether one of the pods is evicted within a second.
func (c *cluster) evicts(t testing.TB, names ...string) bool {
	t.Helper()
	return holds(t, time.Second, func() bool {
		for _, name := range names {
			if p := c.pod(t, name); p == nil || p.DeletionTimestamp != nil {
				return true
			}
		}
		return false
	})
}

// A pod that has to wait until its node has admitted, placed or moved others evicts nobody: neither there, nor
// on another node that is full of less important pods.
func TestNobodyIsEvictedForAMoment(t *testing.T) {
	a := node(t, "a")
	small, large := []option{container(t, 7), priority(1000)}, []option{priority(1000)}
	for name, tc := range map[string]struct {
		there []option // of the pod on node a, which is less important
		units gpu.Units
		asks  gpu.Units // of the one that waits
		with  []option
		then  option // it ends the wait
	}{
		"not admitted": {[]option{boundJustNow(t, a, 0)}, 3, 3, small, on(t, a, 0)},
		"not placed":   {[]option{sentTo("a")}, 6, 6, large, on(t, a, 0)},
		"being moved":  {[]option{on(t, a, 0), leavingGPU(t, "a", 1)}, 6, 6, large, on(t, a, 0)},
	} {
		for _, mode := range modes {
			for _, more := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/another node: %t", name, mode.name, more), func(t *testing.T) {
					t.Parallel()
					objects := []runtime.Object{a, pod(t, "low", tc.units, append(tc.there, gracefully)...)}
					low := []string{"low"}
					if more {
						b := node(t, "b")
						objects = append(objects, b, pod(t, "one", 10, on(t, b, 0), gracefully), pod(t, "two", 10, on(t, b, 1), gracefully))
						low = append(low, "one", "two")
					}
					c := start(t, objects, mode.setup)
					c.add(t, pod(t, "high", tc.asks, tc.with...))
					c.waits(t, "high")
					if c.evicts(t, low...) {
						t.Errorf("a pod was evicted, though there is room on node a for both; high: %+v", c.pod(t, "high").Status.Conditions)
					}
					c.changePod(t, "low", func(p *v1.Pod) { delete(p.Annotations, names(t).Assignment()); tc.then(p) })
					if got := c.bound(t, "high", 0); got.Node != "a" {
						t.Errorf("high is on %v", got)
					}
				})
			}
		}
	}
}

// Small pods that come one after the other, each admitted 0.8 s after it was bound, do not keep a pod off for
// long which could be taken for them. They do not stand in each other's way, so there is always one that is not
// admitted yet, and there is room all the time.
func TestAStreamDoesNotStarveAPodOfAnotherShape(t *testing.T) {
	const every, admission, alive = 120 * time.Millisecond, 800 * time.Millisecond, 12
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			c := start(t, []runtime.Object{node(t, "node")}, mode.setup)
			small := func(i int) string { return fmt.Sprint("small-", i) }
			made, next := 0, time.Now()
			boundAt := make(map[string]time.Time)
			stream := func() {
				if time.Now().After(next) {
					c.add(t, pod(t, small(made), 1))
					if old := small(made - alive); c.pod(t, old) != nil {
						c.remove(t, old)
					}
					made, next = made+1, time.Now().Add(every)
				}
				for i := max(0, made-alive); i < made; i++ { // the kubelet
					p := c.pod(t, small(i))
					if p == nil || p.Spec.NodeName == "" || p.Status.StartTime != nil {
						continue
					}
					if at, ok := boundAt[p.Name]; !ok {
						boundAt[p.Name] = time.Now()
					} else if time.Since(at) >= admission {
						c.changePod(t, p.Name, func(p *v1.Pod) { now := metav1.Now(); p.Status.StartTime, p.Status.Phase = &now, v1.PodRunning })
					}
				}
			}
			c.eventually(t, 10*time.Second, "some pods have come", func() bool { stream(); return made > alive })
			c.add(t, pod(t, "other", 1, container(t, 4)))
			begin := time.Now()
			if !holds(t, 20*time.Second, func() bool { stream(); return c.pod(t, "other").Spec.NodeName != "" }) {
				t.Fatalf("not bound, after %d tries: %+v", len(c.questions("other")), c.pod(t, "other").Status.Conditions)
			}
			t.Logf("bound after %v and %d tries", time.Since(begin).Round(time.Millisecond), len(c.questions("other")))
		})
	}
}

// A pod that can go to one node alone, as DaemonSets make them, is not tried again for memory that is free on others.
func TestAPodOfOneNodeIsNotWokenForOthers(t *testing.T) {
	full, free := nodeOf(t, "full", device("full", 0)), nodeOf(t, "free", device("free", 0))
	c := start(t, []runtime.Object{full, free, pod(t, "filler", 10, on(t, full, 0))}, inProcess)
	c.add(t, pod(t, "daemon", 5, func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
			NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{"full"}}}}},
		}}}
	}))
	c.waits(t, "daemon")
	before := len(c.questions("daemon"))
	for i := range 2 {
		c.add(t, pod(t, fillerName("free", i), 1, on(t, free, 0)))
		if holds(t, 3*wakeInterval, func() bool { return len(c.questions("daemon")) > before }) {
			t.Fatal("it was tried again, for what is free on a node to which it cannot go")
		}
	}
}

// Preemption clears GPUs, next to a MIG instance that is free.
func TestPreemptionNextToAMIGInstance(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			mig := device("node", 2)
			mig.UUID, mig.Model = "MIG-node-2", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
			n := nodeOf(t, "node", device("node", 0), device("node", 1), mig)
			c := start(t, []runtime.Object{n, pod(t, "a", 8, on(t, n, 0)), pod(t, "b", 8, on(t, n, 1))}, mode.setup)
			c.add(t, pod(t, "high", 16, annotated(names(t).Count(), "2"), priority(1000)))
			c.bound(t, "high", 0)
		})
	}
}
