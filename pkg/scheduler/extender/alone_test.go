package extender

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/history"
)

// four returns a world with four nodes, each with one GPU of 10 units.
func four(t testing.TB) (w *world, names []string) {
	w = newWorld(t)
	for i := range 4 {
		name := fmt.Sprint("n", i)
		names = append(names, name)
		w.Cache.SetNode(name, inventory(gpu.Device{UUID: gpu.UUID("GPU-" + name), Allocatable: 10}))
	}
	return w, names
}

func (w *world) fits(pod *v1.Pod, names ...string) []string {
	return *w.Filter(context.Background(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &names}).NodeNames
}

func TestFilterNamesTheBestNodeAlone(t *testing.T) {
	w, names := four(t)
	w.Alone = true
	var told []history.Decision
	w.Decided = func(_ placement.PodRef, d history.Decision) { told = append(told, d) }
	if problem := w.bind(w.pod("first", "4"), "n2"); problem != "" {
		t.Fatal(problem)
	}
	told = nil
	result := w.Filter(context.Background(), &extenderv1.ExtenderArgs{Pod: w.pod("second", "4"), NodeNames: &names})
	want := &extenderv1.ExtenderFilterResult{NodeNames: &[]string{"n2"}}
	if diff := cmp.Diff(want, result); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(told) != 2 || told[0].Fit != 4 || told[1].Verb != history.Prioritize || told[1].Node != "n2" || len(told[1].Nodes) != 4 {
		t.Errorf("told %+v, want that it fits 4 nodes, and which is the best", told)
	}
	if diff := cmp.Diff([]string(nil), w.cluster.woken); diff != "" {
		t.Error(diff)
	}

	// A request with full Node objects gets a response with full Node objects.
	given := &v1.NodeList{Items: []v1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "n2"}}}}
	result = w.Filter(context.Background(), &extenderv1.ExtenderArgs{Pod: w.pod("third", "2"), Nodes: given})
	if result.Nodes == nil || len(result.Nodes.Items) != 1 || result.Nodes.Items[0].Name != "n2" {
		t.Errorf("nodes in full: %+v, want n2", result.Nodes)
	}

	// kube-scheduler itself chooses the node of a pod that requests no memory, and a bound pod stays on its
	// node.
	if got := w.fits(w.pod("none", "0"), names...); len(got) != 4 {
		t.Errorf("a pod that asks for none fits %v, want all", got)
	}
	if got := w.fits(w.cluster.pods["team/first"], names...); !cmp.Equal(got, []string{"n2"}) {
		t.Errorf("a pod that is on a node fits %v, want that node", got)
	}
}

// kube-scheduler sends the requests for the next pod while the Bind of the previous pod is in progress. The
// extender already charges the previous pod to its node.
func TestAPodIsPlacedBesideThoseThatAreToBeBound(t *testing.T) {
	for name, alone := range map[string]bool{"by filter": true, "by scores": false} {
		t.Run(name, func(t *testing.T) {
			w, names := four(t)
			w.Alone = alone
			if problem := w.bind(w.pod("seed", "1"), "n3"); problem != "" { // makes n3 the best node
				t.Fatal(problem)
			}
			var got []string
			for i := range 4 {
				pod := w.pod(fmt.Sprint("pod-", i), "6")
				fit := w.fits(pod, names...)
				if !alone && len(fit) > 1 {
					scores := *w.Prioritize(context.Background(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &fit})
					best := scores[0]
					for _, s := range scores {
						if s.Score > best.Score {
							best = s
						}
					}
					fit = []string{best.Host}
					if best.Score < extenderv1.MaxExtenderPriority {
						t.Errorf("pod %d: the best score is %d", i, best.Score)
					}
				}
				got = append(got, fit[0])
			}
			// No GPU has memory for two of these pods, so each pod needs another node. Between nodes of equal
			// score, kube-scheduler chooses, and the extender does not know the choice.
			if alone {
				if diff := cmp.Diff([]string{"n3", "n0", "n1", "n2"}, got); diff != "" {
					t.Errorf("nodes (-want +got):\n%s", diff)
				}
			} else if got[0] != "n3" || got[1] == "n3" {
				t.Errorf("nodes %v, want the first on n3 and the second elsewhere", got)
			}
		})
	}
}

// The ranking charges the pods that are about to be bound, so a burst is spread over the nodes.
func TestABurstIsRankedByWhatIsToCome(t *testing.T) {
	w, names := four(t)
	w.Alone, w.Policies.Node = true, placement.Spread
	var got []string
	for i := range 4 {
		got = append(got, w.fits(w.pod(fmt.Sprint("pod-", i), "2"), names...)...)
	}
	slices.Sort(got)
	if diff := cmp.Diff(names, got); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// An expected pod does not block other pods: a pod that fits only the GPU of an expected pod passes the
// filter.
func TestWhatIsExpectedRefusesNothing(t *testing.T) {
	w, _ := four(t)
	w.Alone = true
	w.fits(w.pod("expected", "6"), "n0")
	second := w.pod("second", "6")
	if got := w.fits(second, "n0"); len(got) != 1 {
		t.Fatalf("fits %v, want n0", got)
	}
	if problem := w.bind(second, "n0"); problem != "" {
		t.Errorf("bind: %s", problem)
	}
	const want = "needs 6 GiB on one GPU; free: GPU0 4 (4 GiB in all)"
	if got := w.bind(w.cluster.pods["team/expected"], "n0"); got != want {
		t.Errorf("the one that was expected: %q, want %q", got, want)
	}
	third := w.Filter(context.Background(), &extenderv1.ExtenderArgs{Pod: w.pod("third", "6"), NodeNames: &[]string{"n0"}})
	if got := third.FailedNodes["n0"]; got != "node(s) unfit: the pod "+want {
		t.Errorf("reason %q, want %q: without what is expected", got, want)
	}
}

// A pod that is nominated to a node, by NominatePod or QueuePod, may fit another node by now. It is
// charged to the node to which Filter sends it.
func TestANominatedPodIsExpectedElsewhere(t *testing.T) {
	for name, nominate := range map[string]func(w *world, ref placement.PodRef, req placement.Request){
		"nominated": func(w *world, ref placement.PodRef, req placement.Request) {
			w.Cache.NominatePod("n3", ref, req, placement.Assignment{}, time.Time{})
		},
		"queued": func(w *world, ref placement.PodRef, req placement.Request) {
			w.Cache.QueuePod("n3", ref, req, w.now, w.now.Add(time.Minute))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := four(t)
			w.Alone = true
			first, second := w.pod("first", "6"), w.pod("second", "6")
			req, err := w.Names.Request(first)
			if err != nil {
				t.Fatal(err)
			}
			nominate(w, api.Ref(first), req)
			a, b := w.fits(first, "n0", "n1"), w.fits(second, "n0", "n1")
			if problem := w.bind(first, a[0]); problem != "" {
				t.Errorf("the first on %s: %s", a[0], problem)
			}
			if problem := w.bind(second, b[0]); problem != "" {
				t.Errorf("the second on %s: %s", b[0], problem)
			}
		})
	}
}

func TestHowLongAPodIsExpected(t *testing.T) {
	for name, tc := range map[string]struct {
		then func(w *world, pod *v1.Pod)
		want []string // nodes of the next pod: n1 while the expected pod is charged to n0
	}{
		"as long as nothing happens": {func(w *world, _ *v1.Pod) { w.now = w.now.Add(cache.ExpectationTTL - 1) }, []string{"n1"}},
		"for a moment":               {func(w *world, _ *v1.Pod) { w.now = w.now.Add(cache.ExpectationTTL) }, []string{"n0"}},
		"until it is gone":           {func(w *world, pod *v1.Pod) { w.Cache.RemovePod(string(pod.UID)) }, []string{"n0"}},
		"until its node is gone":     {func(w *world, _ *v1.Pod) { w.Cache.RemoveNode("n0") }, []string{"n1"}},
		"until its Bind is refused": {func(w *world, pod *v1.Pod) {
			w.cluster.bindErr = errRefused
			w.bind(pod, "n0")
		}, []string{"n0"}},
		"until its Bind finds that it is gone": {func(w *world, pod *v1.Pod) {
			delete(w.cluster.pods, "team/expected")
			if problem := w.bind(pod, "n0"); problem != "pod team/expected is gone" {
				t.Errorf("bind: %q", problem)
			}
		}, []string{"n0"}},
		"until it is bound elsewhere": {func(w *world, pod *v1.Pod) {
			w.Cache.AddPod("n1", placement.Holding{Pod: placement.PodRef{UID: string(pod.UID)}, Request: placement.Request{}})
		}, []string{"n0"}},
		"until it is asked about again": {func(w *world, pod *v1.Pod) { w.fits(pod, "n3") }, []string{"n0"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := four(t)
			w.Alone = true
			pod := w.pod("expected", "6")
			if got := w.fits(pod, "n0", "n1"); got[0] != "n0" {
				t.Fatalf("placed on %v", got)
			}
			tc.then(w, pod)
			if diff := cmp.Diff(tc.want, w.fits(w.pod("next", "6"), "n0", "n1")); diff != "" {
				t.Errorf("the next pod (-want +got):\n%s", diff)
			}
		})
	}
}

// In a burst, kube-scheduler sends several Filters of other pods between the Filter and the Bind of a pod. No
// Bind is refused.
func TestABurstIsPlacedWithoutRefusals(t *testing.T) {
	w := newWorld(t)
	w.Alone = true
	var names []string
	for i := range 20 {
		name := fmt.Sprintf("n%02d", i)
		names = append(names, name)
		gpus := make([]gpu.Device, 8)
		for k := range gpus {
			gpus[k] = gpu.Device{UUID: gpu.UUID(fmt.Sprint("GPU-", i, "-", k)), Allocatable: 80}
		}
		w.Cache.SetNode(name, inventory(gpus...))
	}
	const late = 16 // number of Filters between the Filter and the Bind of a pod
	type bound struct {
		pod  *v1.Pod
		node string
	}
	var queue []bound
	refused := 0
	bindOne := func() {
		if problem := w.bind(queue[0].pod, queue[0].node); problem != "" {
			refused++
		}
		queue = queue[1:]
	}
	sizes := []string{"3", "5", "8", "10", "16", "20", "40"}
	for i := range 400 {
		pod := w.pod(fmt.Sprint("pod-", i), sizes[i%len(sizes)])
		fit := w.fits(pod, names...)
		if len(fit) != 1 {
			t.Fatalf("pod %d fits %v", i, fit)
		}
		if queue = append(queue, bound{pod, fit[0]}); len(queue) > late {
			bindOne()
		}
		w.now = w.now.Add(2 * time.Millisecond)
	}
	for len(queue) > 0 {
		bindOne()
	}
	if refused > 0 {
		t.Errorf("%d of 400 Binds were refused", refused)
	}
}
