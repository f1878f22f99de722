package extender

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// fakeNeighbours lists the pods of a fakeCluster.
type fakeNeighbours struct {
	*fakeCluster
	budgets []*policyv1.PodDisruptionBudget
}

func (f *fakeNeighbours) PodsOn(node string) (out []*v1.Pod) {
	for _, pod := range f.pods {
		if pod.Spec.NodeName == node {
			out = append(out, pod)
		}
	}
	return out
}

func (f *fakeNeighbours) Budgets(namespace string) []*policyv1.PodDisruptionBudget {
	return slices.DeleteFunc(slices.Clone(f.budgets), func(b *policyv1.PodDisruptionBudget) bool { return b.Namespace != namespace })
}

// placed binds a pod with a priority to a node.
func (w *world) placed(t testing.TB, name, units, node string, priority int32) {
	t.Helper()
	pod := w.pod(name, units)
	pod.Spec.Priority = &priority
	pod.Labels = map[string]string{"app": name}
	if problem := w.bind(pod.DeepCopy(), node); problem != "" {
		t.Fatal(problem)
	}
	holding, err := w.Names.Holding(pod)
	if err != nil {
		t.Fatal(err)
	}
	w.Cache.AddPod(node, holding)
}

// preemptor returns a waiting pod of priority 1000.
func (w *world) preemptor(units string) *v1.Pod {
	pod := w.pod("vip", units)
	pod.Spec.Priority = new(int32(1000))
	return pod
}

// crowded returns a world with these pods on node pair: low-0 (10 units) and mid-0 (3) on GPU 0 of 16 units;
// low-1 (4) and high-1 (9), whose priority exceeds the preemptor's, on GPU 1 of 16 units; and other, which
// has no GPU. On node big, one pod has the whole GPU.
func crowded(t testing.TB) (*world, *fakeNeighbours) {
	w := newWorld(t)
	neighbours := &fakeNeighbours{fakeCluster: w.cluster}
	w.Neighbours = neighbours
	w.placed(t, "low-0", "10", "pair", 1)
	w.placed(t, "mid-0", "3", "pair", 500)
	w.placed(t, "low-1", "4", "pair", 0)
	w.placed(t, "high-1", "9", "pair", 2000)
	w.placed(t, "bulk", "80", "big", 0)
	other := w.pod("other", "0")
	other.Spec.Containers[0].Resources = v1.ResourceRequirements{}
	other.Spec.Priority, other.Spec.NodeName = new(int32(700)), "pair"
	return w, neighbours
}

// victims returns the victims of a request or a response by pod names.
func victims(violations int64, names ...string) *extenderv1.MetaVictims {
	v := &extenderv1.MetaVictims{NumPDBViolations: violations}
	for _, name := range names {
		v.Pods = append(v.Pods, &extenderv1.MetaPod{UID: "uid-" + name})
	}
	return v
}

type nodesToVictims map[string]*extenderv1.MetaVictims

func (w *world) preempt(pod *v1.Pod, proposed nodesToVictims) nodesToVictims {
	return w.Preempt(context.Background(), &extenderv1.ExtenderPreemptionArgs{Pod: pod, NodeNameToMetaVictims: proposed}).NodeNameToMetaVictims
}

func TestPreemptChoosesVictimsOfOneGPU(t *testing.T) {
	for name, tc := range map[string]struct {
		units       string
		annotations map[string]string
		proposed    nodesToVictims
		want        nodesToVictims
	}{
		"as many of one GPU as it takes": {
			units: "14", proposed: nodesToVictims{"pair": victims(0, "low-0")}, want: nodesToVictims{"pair": victims(0, "mid-0", "low-0")},
		},
		"a pod of one GPU in place of the one that the sum would take": {
			units: "9", proposed: nodesToVictims{"pair": victims(0, "low-1")}, want: nodesToVictims{"pair": victims(0, "low-0")},
		},
		"each node for itself": {
			units: "9", proposed: nodesToVictims{"pair": victims(0, "low-1"), "big": victims(0, "bulk")},
			want: nodesToVictims{"pair": victims(0, "low-0"), "big": victims(0, "bulk")},
		},
		"a node where no eviction helps is left out": {
			units: "40", proposed: nodesToVictims{"pair": victims(0, "low-0"), "big": victims(0, "bulk")}, want: nodesToVictims{"big": victims(0, "bulk")},
		},
		"nodes that are not known, or have no GPU": {
			units: "9", proposed: nodesToVictims{"plain": victims(0, "x"), "unknown": victims(0, "x")}, want: nodesToVictims{},
		},
		"a pod without a GPU is evicted too": {
			units: "9", proposed: nodesToVictims{"pair": victims(0, "other", "low-1")}, want: nodesToVictims{"pair": victims(0, "other", "low-0")},
		},
		"and its budget counted by kube-scheduler": {
			units: "9", proposed: nodesToVictims{"pair": victims(1, "other", "low-1")}, want: nodesToVictims{"pair": victims(1, "other", "low-0")},
		},
		"only GPUs that the pod may use": {
			units: "7", annotations: map[string]string{"gpumem.dev/gpu-uuid": "GPU-aaaa"},
			proposed: nodesToVictims{"pair": victims(0, "low-1")}, want: nodesToVictims{"pair": victims(0, "low-0")},
		},
		"a pod that asks for no GPU memory": {
			units: "0", proposed: nodesToVictims{"pair": victims(2, "other")}, want: nodesToVictims{"pair": victims(2, "other")},
		},
		"a pod that cannot be read evicts nobody": {
			units: "9", annotations: map[string]string{"gpumem.dev/gpu-count": "two"}, proposed: nodesToVictims{"pair": victims(0, "low-1")}, want: nodesToVictims{},
		},
		"no victims proposed, and none are needed": {
			units: "0", proposed: nodesToVictims{"pair": victims(0), "big": nil}, want: nodesToVictims{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := crowded(t)
			pod := w.preemptor(tc.units)
			pod.Annotations = tc.annotations
			before := w.Cache.Nodes()
			if diff := cmp.Diff(tc.want, w.preempt(pod, tc.proposed)); diff != "" {
				t.Errorf("victims (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, w.Cache.Nodes()); diff != "" {
				t.Errorf("preempt changed the cache (-before +after):\n%s", diff)
			}
		})
	}
}

func TestPreemptAnswersForVictimsGivenInFull(t *testing.T) {
	w, _ := crowded(t)
	got := w.Preempt(context.Background(), &extenderv1.ExtenderPreemptionArgs{
		Pod:               w.preemptor("9"),
		NodeNameToVictims: map[string]*extenderv1.Victims{"pair": {Pods: []*v1.Pod{w.cluster.pods["team/low-1"], nil}}, "big": nil},
	})
	want := &extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: nodesToVictims{"pair": victims(0, "low-0")}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("victims (-want +got):\n%s", diff)
	}
}

func TestPreemptKeepsToBudgets(t *testing.T) {
	w, neighbours := crowded(t)
	budget := func(app string) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: app},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		}
	}
	for _, tc := range []struct {
		budgets        []string
		proposed, want *extenderv1.MetaVictims
	}{
		{nil, victims(0, "low-1"), victims(0, "low-1")},
		{[]string{"low-1"}, victims(0, "low-0"), victims(0, "low-0")},
		{[]string{"low-1", "low-0"}, victims(0, "mid-0"), victims(1, "low-1")},
	} {
		neighbours.budgets = nil
		for _, app := range tc.budgets {
			neighbours.budgets = append(neighbours.budgets, budget(app))
		}
		if diff := cmp.Diff(nodesToVictims{"pair": tc.want}, w.preempt(w.preemptor("7"), nodesToVictims{"pair": tc.proposed})); diff != "" {
			t.Errorf("with budgets of %v (-want +got):\n%s", tc.budgets, diff)
		}
	}
}

func TestNobodyIsEvictedForAPodThatMayBeBoundYet(t *testing.T) {
	w, _ := crowded(t)
	w.Cache.RemovePod("uid-low-0")
	pod := w.preemptor("9")
	w.bindLost(t, pod, "pair")
	proposed := nodesToVictims{"pair": victims(0, "other"), "big": victims(0, "bulk")}
	if diff := cmp.Diff(nodesToVictims{"pair": victims(0, "other")}, w.preempt(pod, proposed)); diff != "" {
		t.Errorf("victims (-want +got):\n%s", diff)
	}
	w.Missing = func() string { return "lists" }
	if got := w.preempt(pod, proposed); len(got) != 0 {
		t.Errorf("not ready, and yet %v", got)
	}
}

// Memory that is reserved for a nominated pod is no reason for an eviction.
func TestNobodyIsEvictedForMemoryThatIsKeptForAnother(t *testing.T) {
	w, _ := crowded(t)
	third := w.pod("third", "9")
	third.Spec.Priority = new(int32(1000))
	req, err := w.Names.Request(third)
	if err != nil {
		t.Fatal(err)
	}
	w.Cache.NominatePod("pair", api.Ref(third), req, placement.Assignment{}, time.Time{})
	if got := w.preempt(w.preemptor("9"), nodesToVictims{"pair": victims(0, "low-1")}); len(got) != 0 {
		t.Errorf("evicted: %v", got)
	}
}

// Between eviction and Bind, the memory is reserved against all other pods.
func TestTheRoomOfANominatedPodIsKept(t *testing.T) {
	w, _ := crowded(t)
	pod := w.preemptor("9")
	req, err := w.Names.Request(pod)
	if err != nil {
		t.Fatal(err)
	}
	w.Cache.NominatePod("pair", api.Ref(pod), req, placement.Assignment{}, time.Time{})
	small := w.pod("small", "5")
	fits := func() []string { return *w.filter(small).NodeNames }

	w.Cache.RemovePod("uid-low-0") // evicted
	if got := fits(); len(got) != 0 {
		t.Errorf("a small pod fits %v, want nowhere", got)
	}
	const want = "needs 5 GiB on one GPU; free: GPU0 4, GPU1 3 (7 in all, fragmented); reserved for pods nominated to this node: 1"
	if got := w.filter(small).FailedNodes["pair"]; got != "node(s) unfit: the pod "+want {
		t.Errorf("reason %q\nwant   %q", got, want)
	}
	if got := w.bind(small, "pair"); got != want {
		t.Errorf("bind: %q\nwant  %q", got, want)
	}
	if problem := w.bind(pod, "pair"); problem != "" {
		t.Errorf("the nominated pod: %s", problem)
	}
	if diff := cmp.Diff([]gpu.UUID{"GPU-aaaa"}, w.devicesOf("pair", pod)); diff != "" {
		t.Errorf("GPUs of the nominated pod (-want +got):\n%s", diff)
	}
}

// The score of a node takes into account the pods that are nominated to the node.
func TestNominatedPodsCountWhenNodesAreScored(t *testing.T) {
	w := newWorld(t)
	vip := w.preemptor("16")
	req, err := w.Names.Request(vip)
	if err != nil {
		t.Fatal(err)
	}
	if problem := w.bind(w.pod("first", "15"), "pair"); problem != "" {
		t.Fatal(problem)
	}
	w.Cache.NominatePod("pair", api.Ref(vip), req, placement.Assignment{}, time.Time{})
	args := &extenderv1.ExtenderArgs{Pod: w.pod("small", "3"), NodeNames: &[]string{"big", "pair"}}
	want := &extenderv1.HostPriorityList{{Host: "big", Score: 10}, {Host: "pair", Score: 0}}
	if diff := cmp.Diff(want, w.Prioritize(context.Background(), args)); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
}

func TestPreemptOverHTTP(t *testing.T) {
	w, _ := crowded(t)
	body, err := json.Marshal(&extenderv1.ExtenderPreemptionArgs{
		Pod: w.preemptor("9"), NodeNameToMetaVictims: nodesToVictims{"pair": victims(0, "low-1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	w.Routes("v1").ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/preempt", strings.NewReader(string(body))))
	var got extenderv1.ExtenderPreemptionResult
	if err := json.Unmarshal(recorder.Body.Bytes(), &got); err != nil || recorder.Code != http.StatusOK {
		t.Fatalf("%d %s: %v", recorder.Code, recorder.Body, err)
	}
	if diff := cmp.Diff(nodesToVictims{"pair": victims(0, "low-0")}, nodesToVictims(got.NodeNameToMetaVictims)); diff != "" {
		t.Errorf("victims (-want +got):\n%s", diff)
	}
}

// An expected pod is not on its node yet, and must not be a victim: kube-scheduler rejects a whole response
// that names a pod that is not on the node.
func TestPreemptNamesNoExpectedPod(t *testing.T) {
	w := newWorld(t)
	w.placed(t, "bulk", "60", "big", 0)
	if got := w.fits(w.pod("soon", "10"), "big"); len(got) != 1 {
		t.Fatalf("fits %v", got)
	}
	got := w.preempt(w.preemptor("75"), nodesToVictims{"big": victims(0, "bulk")})
	if diff := cmp.Diff(nodesToVictims{"big": victims(0, "bulk")}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
