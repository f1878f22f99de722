package extender

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// A pod of 14 units was refused on n0 to n2, where another pod has 10 of 20 units. The pod fits n3, but the
// request did not name n3, as if another constraint of the pod excluded n3.
func TestWhichPodsAreWoken(t *testing.T) {
	asked := []string{"n0", "n1", "n2"}
	const second = time.Second
	type step struct {
		after time.Duration
		do    func(w *world)
		want  bool // the next call of Wake requeues the pod
	}
	gone := func(w *world) { w.Cache.RemovePod("uid-on-n1") }
	ask5 := func(w *world) { w.fits(w.cluster.pods["team/waits"], "n0", "n5") }
	ask := func(w *world) { w.fits(w.cluster.pods["team/waits"], asked...) }
	for name, steps := range map[string][]step{
		"nothing happens":                      {{second, nil, false}, {time.Minute, nil, false}},
		"room was made":                        {{second, gone, false}, {second, nil, true}, {second, nil, false}, {time.Minute, nil, false}},
		"and kube-scheduler asks":              {{second, gone, false}, {second / 2, ask, false}, {second, nil, false}},
		"and is gone again":                    {{second, gone, false}, {second / 2, func(w *world) { w.Cache.AddPod("n1", w.holding("other", "10")) }, false}, {second, nil, false}},
		"a node that it did not ask about":     {{second, func(w *world) { w.Cache.RemovePod("uid-on-n3") }, false}, {time.Minute, nil, false}},
		"another is taken and free again":      {{second, gone, false}, {second / 2, ask5, false}, {second / 4, func(w *world) { w.Cache.AddPod("n1", w.holding("other", "10")); ask(w); w.Cache.RemovePod("uid-other") }, false}, {second, nil, true}},
		"others begin to fit all the time":     {{second, gone, false}, {second / 2, func(w *world) { w.Cache.RemovePod("uid-on-n0") }, false}, {second / 2, func(w *world) { w.Cache.RemovePod("uid-on-n2") }, true}},
		"it was heard of late":                 {{0, func(w *world) { w.cluster.unheard = true }, false}, {second, gone, false}, {second, func(w *world) { w.cluster.unheard = false }, false}, {second, nil, true}},
		"a node comes that was never there":    {{second, func(w *world) { w.node("n9") }, false}, {second, nil, true}},
		"and kube-scheduler does not want it":  {{second, func(w *world) { w.node("n9") }, false}, {second, nil, true}, {second / 2, ask, false}, {second, nil, false}, {second, func(w *world) { w.node("n9") }, false}, {time.Minute, nil, false}},
		"the pod is bound":                     {{second, gone, false}, {0, func(w *world) { w.cluster.pods["team/waits"].Spec.NodeName = "n1" }, false}, {second, nil, false}},
		"the pod is gone":                      {{second, gone, false}, {0, func(w *world) { delete(w.cluster.pods, "team/waits") }, false}, {second, nil, false}},
		"the pod is made again under its name": {{second, gone, false}, {0, func(w *world) { w.cluster.pods["team/waits"].UID = "another" }, false}, {second, nil, false}},
		"the pod is being deleted": {{second, gone, false}, {0, func(w *world) {
			w.cluster.pods["team/waits"].DeletionTimestamp = new(metav1.Now())
		}, false}, {second, nil, false}},
		"a Bind of it is under way": {{second, gone, false}, {0, func(w *world) {
			w.cluster.bindErr = errRefused
			w.bind(w.cluster.pods["team/waits"], "n1")
		}, false}, {second, nil, false}},
		"no question about it comes any more": {{second, nil, false}, {decider.RefusalTTL, gone, false}, {second, nil, false}},
		"another leads":                       {{second, gone, false}, {0, func(w *world) { w.Missing = func() string { return "another leads" } }, false}, {second, nil, false}},
		"the API server refuses once": {
			{second, gone, false},
			{second, func(w *world) { w.cluster.wakeErr = errors.New("away") }, false},
			{second, func(w *world) { w.cluster.wakeErr = nil }, false},
			{second, nil, true},
		},
		"what it asks for changes": {{second, func(w *world) {
			smaller := w.pod("waits", "2")
			w.cluster.pods["team/waits"] = smaller
			w.fits(smaller, "n5")
		}, false}, {second, nil, false}, {second, func(w *world) { w.node("n5") }, false}, {second, nil, true}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for i := range 4 {
				w.node(fmt.Sprint("n", i))
				w.Cache.AddPod(fmt.Sprint("n", i), w.holding(fmt.Sprint("on-n", i), "10"))
			}
			w.Cache.RemovePod("uid-on-n3")
			w.Cache.AddPod("n3", w.holding("on-n3", "3"))
			pod := w.pod("waits", "14")
			if got := w.fits(pod, asked...); len(got) > 0 {
				t.Fatalf("fits %v", got)
			}
			w.Wake(context.Background(), w.cluster)
			for i, step := range steps {
				w.now = w.now.Add(step.after)
				if step.do != nil {
					step.do(w)
				}
				w.cluster.woken = nil
				w.Wake(context.Background(), w.cluster)
				want := []string(nil)
				if step.want {
					want = []string{"waits"}
				}
				if diff := cmp.Diff(want, w.cluster.woken); diff != "" {
					t.Errorf("step %d: woken (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// A pod has a binding of unknown outcome to a node that kube-scheduler's own filters exclude by now. The pod
// can go to no other node. When the review finds that the pod is not bound, Wake requeues it.
func TestAPodIsWokenWhenItsBindingHasNotLanded(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("pod", "3")
	w.bindLost(t, pod, "pair")
	if got := w.fits(pod, "big"); len(got) > 0 {
		t.Fatalf("fits %v", got)
	}
	for range 3 {
		w.now = w.now.Add(decider.WakeAfter)
		w.Wake(t.Context(), w.cluster)
	}
	if len(w.cluster.woken) > 0 {
		t.Error("woken while nobody knows whether it is bound")
	}
	w.now = w.now.Add(30 * time.Second)
	w.ReviewAssumed(t.Context(), 30*time.Second)
	for range 3 {
		w.now = w.now.Add(decider.WakeAfter)
		w.Wake(t.Context(), w.cluster)
	}
	if diff := cmp.Diff([]string{"pod"}, w.cluster.woken); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}
}

func (w *world) node(name string) {
	w.Cache.SetNode(name, inventory(gpu.Device{UUID: gpu.UUID("GPU-" + name), Allocatable: 20}))
}

// newSampledWorld returns a world of 498 nodes, and kube-scheduler's sample of them. A pod of 14 units fits n400
// and n401, which the sample lacks.
func newSampledWorld(t testing.TB) (w *world, sample []string) {
	w = newWorld(t)
	w.Log = zap.NewNop() // each attempt logs 230 refusals
	for i := range 498 {
		name := fmt.Sprintf("n%03d", i)
		sample = append(sample, name)
		w.node(name)
		w.Cache.AddPod(name, w.holding("on-"+name, "10"))
	}
	w.Cache.RemovePod("uid-on-n400")
	w.Cache.RemovePod("uid-on-n401")
	w.Cache.RemoveNode("pair")
	w.Cache.RemoveNode("big")
	return w, sample[:nodesToFind(len(sample))]
}

// mayPreempt reports whether the pod may evict a pod from n000.
func (w *world) mayPreempt(t testing.TB, pod *v1.Pod) bool {
	proposed := map[string]*extenderv1.MetaVictims{"n000": {Pods: []*extenderv1.MetaPod{{UID: "uid-on-n000"}}}}
	return len(w.Preempt(t.Context(), &extenderv1.ExtenderPreemptionArgs{Pod: pod, NodeNameToMetaVictims: proposed}).NodeNameToMetaVictims) > 0
}

// wakes lets the time pass in which Wake must requeue a pod, and returns the nominations.
func (w *world) wakes(t testing.TB) (nominated []string) {
	w.cluster.nominated = nil
	for range 3 {
		w.now = w.now.Add(decider.WakeAfter)
		w.Wake(t.Context(), w.cluster)
	}
	for _, node := range w.cluster.nominated {
		if node == nil {
			nominated = append(nominated, "unchanged")
		} else {
			nominated = append(nominated, "to "+*node)
		}
	}
	return nominated
}

// The nodes outside the sample with enough memory take no pods, or exclude this pod. Wake must not nominate the
// pod to them, and they must not delay the pod's preemption.
func TestNoPodIsNominatedToANodeThatExcludesIt(t *testing.T) {
	for name, exclude := range map[string]func(*world, *v1.Node, *v1.Pod){
		"a cordoned node": func(_ *world, n *v1.Node, _ *v1.Pod) { n.Spec.Unschedulable = true },
		"a tainted node": func(_ *world, n *v1.Node, _ *v1.Pod) {
			n.Spec.Taints = []v1.Taint{{Key: "team", Effect: v1.TaintEffectNoSchedule}}
		},
		"a node of the pool": func(_ *world, _ *v1.Node, p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "a"} },
		"a node without CPU": func(w *world, n *v1.Node, p *v1.Pod) {
			inv := inventory(gpu.Device{UUID: gpu.UUID("GPU-" + n.Name), Allocatable: 20})
			inv.CPU = 500
			w.Cache.SetNode(n.Name, inv)
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		},
		"a node that is down": func(_ *world, n *v1.Node, _ *v1.Pod) {
			n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionUnknown}}
		},
	} {
		synctest.Test(t, func(t *testing.T) { // Filter waits for changes
			w, sample := newSampledWorld(t)
			pod := w.pod("waits", "14")
			w.cluster.nodes = map[string]*v1.Node{"n400": {}, "n401": {}}
			for name, node := range w.cluster.nodes {
				node.Name = name
				exclude(w, node, pod)
			}
			w.fits(pod, sample...)
			if !w.mayPreempt(t, pod) {
				t.Errorf("%s: the pod must not evict others, and fits no node that it may use", name)
			}
			if got := w.wakes(t); len(got) > 0 {
				t.Errorf("%s: nominated %v", name, got)
			}
			w.cluster.nodes["n401"], pod.Spec.NodeSelector = &v1.Node{}, nil
			w.node("n401")
			if diff := cmp.Diff([]string{"to n401"}, w.wakes(t)); diff != "" {
				t.Errorf("%s: after n401 admits the pod (-want +got):\n%s", name, diff)
			}
		})
	}
}

// Three pods wait for the same room. Wake nominates one of them at once, before kube-scheduler asks about another
// sample and backs off. It does not nominate the others, also before the watch has shown the nomination.
func TestOnePodIsNominatedToARoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // Filter waits for changes
		w, sample := newSampledWorld(t)
		w.Cache.AddPod("n401", w.holding("on-n401", "10"))
		for _, name := range []string{"a", "b", "c"} {
			w.fits(w.pod(name, "14"), sample...)
		}
		w.Wake(t.Context(), w.cluster)
		if got := w.cluster.woken; len(got) != 1 || *w.cluster.nominated[0] != "n400" {
			t.Errorf("nominated: %v, want one pod", got)
		}
	})
}

// A new leader does not know which pods kube-scheduler asked about a sample for. It removes the nominations of
// its predecessor nevertheless.
func TestANewLeaderRemovesStaleNominations(t *testing.T) {
	w, _ := newSampledWorld(t)
	pod := w.pod("waits", "24")
	pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable}}
	pod.Status.NominatedNodeName = "n000"
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, w.Names.RoomMadeAt(), "2026-01-01T00:00:00Z n000")
	if diff := cmp.Diff([]string{"to "}, w.wakes(t)); diff != "" {
		t.Errorf("nominations (-want +got):\n%s", diff)
	}
}

// A pod has fitted n400 for a minute, and kube-scheduler does not accept n400. So the pod evicts others from
// n000. Wake must not move it to n400 then: it would lose the room, and evict others elsewhere.
func TestWakeKeepsTheNominationOfAPreemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // Filter waits for changes
		w, sample := newSampledWorld(t)
		pod := w.pod("waits", "14")
		for range 30 {
			w.fits(pod, sample...)
			w.wakes(t)
		}
		w.fits(pod, sample...)
		if !w.mayPreempt(t, pod) {
			t.Fatal("the pod may evict no other")
		}
		pod.Status.NominatedNodeName = "n000"
		for range 30 {
			w.fits(pod, "n000")
			w.fits(pod, sample...)
			for _, got := range w.wakes(t) {
				if got != "unchanged" {
					t.Errorf("nominated %s, and the victims on n000 are leaving", got)
				}
			}
		}
	})
}

// Before the sample, kube-scheduler asks about the node to which the pod is nominated. This must not prolong the
// minute in which the pod evicts no other.
func TestQuestionsAboutOneNodeDoNotDelayPreemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // Filter waits for changes
		w, sample := newSampledWorld(t)
		pod := w.pod("waits", "14")
		for range 30 {
			w.fits(pod, sample...)
			w.wakes(t)
			w.fits(pod, "n000")
		}
		w.fits(pod, sample...)
		if !w.mayPreempt(t, pod) {
			t.Error("after a minute and a half, the pod evicts no other")
		}
	})
}

// kube-scheduler asks about samples of the nodes that lack the nodes where the pod fits. Wake nominates the pod
// to these nodes in turn, because another constraint may exclude one of them. The attempts become rarer. The
// pod evicts no other pod at first.
func TestAPodIsNominatedToANodeThatTheSampleLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // Filter waits for changes
		w, sample := newSampledWorld(t)
		pod := w.pod("waits", "14")
		tries := func(attempts int) (nominated []string) {
			for range attempts {
				w.fits(pod, sample...)
				for range 3 {
					w.now = w.now.Add(decider.WakeAfter)
					w.cluster.woken, w.cluster.nominated = nil, nil
					w.Wake(context.Background(), w.cluster)
					for _, node := range w.cluster.nominated {
						nominated = append(nominated, *node)
					}
				}
			}
			return nominated
		}
		w.fits(pod, sample...)
		if w.mayPreempt(t, pod) {
			t.Error("the pod evicts another, and fits n400")
		}
		got := tries(60)
		if len(got) < 6 || len(got) > 12 || !cmp.Equal(got[:4], []string{"n400", "n401", "n400", "n401"}) {
			t.Errorf("nominated to %v in three minutes, want n400 and n401 in turn, less and less often", got)
		}
		if !w.mayPreempt(t, pod) {
			t.Error("after three minutes, the pod evicts no other")
		}

		// Other filters exclude n400, and kube-scheduler keeps the nomination. It ends at the next pause.
		w.cluster.woken = nil
		w.now = w.now.Add(time.Minute)
		w.Wake(t.Context(), w.cluster)
		nominate := func(node string) {
			pod.Status.NominatedNodeName = node
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, w.Names.RoomMadeAt(), "2026-01-01T00:00:00Z "+node)
		}
		nominate("n400")
		if got := tries(1); !cmp.Equal(got, []string{""}) {
			t.Errorf("nominated to %q, want that the nomination ends", got)
		}
		nominate("")
		if got := tries(1); len(got) > 0 {
			t.Errorf("nominated to %q during the pause", got)
		}

		// kube-scheduler keeps the nomination after the node has been taken.
		w.Cache.AddPod("n400", w.holding("on-n400", "10"))
		w.Cache.AddPod("n401", w.holding("on-n401", "10"))
		pod.Status.NominatedNodeName = "n401"
		if got := tries(5); len(got) > 0 {
			t.Errorf("nominated to %v, and another program has nominated it to n401", got)
		}
		nominate("n401")
		if got := tries(5); len(got) == 0 || got[0] != "" {
			t.Errorf("nominated to %q, want that the nomination to n401 ends", got)
		}
		pod.Status.NominatedNodeName = ""
		if got := tries(5); len(got) > 0 {
			t.Errorf("nominated to %v, and it fits nowhere", got)
		}
	})
}

// A new extender wakes the pods that its predecessor refused, because no event makes kube-scheduler try these
// pods again.
func TestPodsThatAnotherRefusedAreWoken(t *testing.T) {
	const waits = "team/waits"
	refused := v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable}
	for name, tc := range map[string]struct {
		conditions []v1.PodCondition
		begin      func(w *world) // runs when the extender starts
		later      func(w *world)
		want       []string
	}{
		"it fits by now":             {conditions: []v1.PodCondition{refused}, begin: func(w *world) { w.Cache.RemovePod("uid-on-n1") }, want: []string{"waits"}},
		"it fits later":              {conditions: []v1.PodCondition{refused}, later: func(w *world) { w.Cache.RemovePod("uid-on-n1") }, want: []string{"waits"}},
		"it fits nowhere":            {conditions: []v1.PodCondition{refused}},
		"kube-scheduler comes to it": {begin: func(w *world) { w.Cache.RemovePod("uid-on-n1") }},
		"its gates are not lifted":   {conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonSchedulingGated}}, begin: func(w *world) { w.Cache.RemovePod("uid-on-n1") }},
		"it has been asked about":    {conditions: []v1.PodCondition{refused}, begin: func(w *world) { w.fits(w.cluster.pods[waits], "n0") }, later: func(w *world) { w.Cache.RemovePod("uid-on-n1") }},
		"another has led meanwhile": {later: func(w *world) {
			ready := w.Missing
			w.Missing = func() string { return "replica b leads" }
			w.Wake(context.Background(), w.cluster)
			w.Missing = ready
			w.cluster.pods[waits].Status.Conditions = []v1.PodCondition{refused}
			w.Cache.RemovePod("uid-on-n1")
		}, want: []string{"waits"}},
		"it asks for what none reads": {conditions: []v1.PodCondition{refused}, begin: func(w *world) { w.cluster.pods[waits].Annotations = map[string]string{w.Names.Count(): "x"} }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Cache.RemoveNode("pair")
			w.Cache.RemoveNode("big")
			for i := range 4 {
				w.node(fmt.Sprint("n", i))
				w.Cache.AddPod(fmt.Sprint("n", i), w.holding(fmt.Sprint("on-n", i), "10"))
			}
			w.pod("waits", "14").Status.Conditions = tc.conditions
			ready := w.Missing
			w.Missing = func() string { return "the first list of pods has not been worked off" }
			w.Wake(context.Background(), w.cluster)
			w.Missing = ready
			look := func(do func(*world)) {
				if do != nil {
					do(w)
				}
				for range 3 {
					w.Wake(context.Background(), w.cluster)
					w.now = w.now.Add(decider.WakeAfter)
				}
			}
			look(tc.begin)
			look(tc.later)
			if diff := cmp.Diff(tc.want, w.cluster.woken); diff != "" {
				t.Errorf("woken (-want +got):\n%s", diff)
			}
		})
	}
}

// Filter and Wake run concurrently.
func TestWakingBesideQuestions(t *testing.T) {
	w := newWorld(t)
	for i := range 8 {
		w.node(fmt.Sprint("n", i))
	}
	pods := []*v1.Pod{w.pod("a", "25"), w.pod("b", "26")} // created before the goroutines read them
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			w.Wake(context.Background(), w.cluster)
			w.Cache.SetNode("n1", inventory(gpu.Device{UUID: "GPU-n1", Allocatable: gpu.Units(10 + i%20)}))
		}
	}()
	names := []string{"n0", "n1", "n2"}
	for i := range 200 {
		w.filterOnce(pods[i%2], names)
	}
	<-done
}

// filterOnce runs Filter once, without a wait.
func (w *world) filterOnce(pod *v1.Pod, names []string) {
	w.Extender.filter(&extenderv1.ExtenderArgs{Pod: pod, NodeNames: &names})
}

// holding returns a pod with the given units on the first GPU of its node.
func (w *world) holding(name, units string) placement.Holding {
	pod := w.pod(name, units)
	req, err := w.Names.Request(pod)
	if err != nil {
		panic(err)
	}
	at := placement.Assignment{Shares: []placement.Share{{Device: gpu.UUID("GPU-" + name[len(name)-2:])}}}
	return placement.Holding{Pod: placement.PodRef{Namespace: "team", Name: name, UID: "uid-" + name}, Request: req, Assignment: at.WithShares(req), Admitted: true}
}
