package extender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/singleflight"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

var (
	errRefused = errors.New("refused")
	errLost    = errors.New("connection lost")
)

// fakeCluster is an API server with pods. Its bindings can fail.
type fakeCluster struct {
	mu        sync.Mutex
	pods      map[string]*v1.Pod // by namespace/name
	nodes     map[string]*v1.Node
	unheard   bool // the watch has shown none of the pods
	bindErr   error
	landed    bool // a failing binding is written nevertheless
	readErr   error
	bindings  []*v1.Binding
	woken     []string  // names of requeued pods
	nominated []*string // their nominations
	wakeErr   error

	// These functions run once, during a read or a binding; nil: none.
	reading, binding func()
}

// meanwhile runs a function once.
func meanwhile(happens *func()) {
	if now := *happens; now != nil {
		*happens = nil
		now()
	}
}

func (f *fakeCluster) Pod(namespace, name string) *v1.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unheard {
		return nil
	}
	return f.pods[namespace+"/"+name].DeepCopy()
}

func (f *fakeCluster) Node(name string) *v1.Node { return f.nodes[name] }

func (f *fakeCluster) Waiting() (out []*v1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.pods)) {
		if pod := f.pods[name]; pod.Spec.NodeName == "" && !f.unheard {
			out = append(out, pod.DeepCopy())
		}
	}
	return out
}

func (f *fakeCluster) ReadPod(_ context.Context, namespace, name string) (*v1.Pod, error) {
	meanwhile(&f.reading)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods[namespace+"/"+name].DeepCopy(), f.readErr
}

func (f *fakeCluster) ReadPodsOn(_ context.Context, node string) ([]*v1.Pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return podsOn(f.pods, node), nil
}

func (f *fakeCluster) Bind(_ context.Context, b *v1.Binding) error {
	meanwhile(&f.binding)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bindings = append(f.bindings, b)
	if f.bindErr == nil || f.landed {
		pod := f.pods[b.Namespace+"/"+b.Name]
		if pod.Spec.NodeName != "" {
			return errRefused
		}
		pod.Spec.NodeName = b.Target.Name
		pod.Annotations = b.Annotations
		pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue})
	}
	return f.bindErr
}

func (f *fakeCluster) Refused(err error) bool { return errors.Is(err, errRefused) }

func (f *fakeCluster) Leader(context.Context) (string, error)   { return "", nil }
func (f *fakeCluster) Revision(context.Context) (string, error) { return "1", nil }
func (f *fakeCluster) Shown(string) bool                        { return false }

func (f *fakeCluster) Wake(_ context.Context, pod placement.PodRef, nominate *string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wakeErr == nil {
		f.woken = append(f.woken, pod.Name)
		f.nominated = append(f.nominated, nominate)
	}
	return f.wakeErr
}

type world struct {
	*Extender
	cluster *fakeCluster
	now     time.Time
}

// newWorld returns a world with two nodes: "pair" with two GPUs of 16 units, and "big" with one GPU of 80
// units.
func newWorld(t testing.TB) *world {
	names := kubetest.Names(t)
	w := &world{
		cluster: &fakeCluster{pods: map[string]*v1.Pod{}},
		now:     time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	w.Extender = &Extender{Neighbours: &fakeNeighbours{fakeCluster: w.cluster}, Decider: decider.Decider{Binder: &binder.Binder{
		Self: "gpumem-extender", Reads: new(singleflight.Group),
		Log: zaptest.NewLogger(t), Names: names, Cache: cache.New(), Cluster: w.cluster,
		Policies: ranking.Policies{GPU: placement.Binpack}, Now: func() time.Time { return w.now },
		Missing: func() string { return "" },
	}}}
	w.Cache.SetNode("pair", inventory(gpu.Device{UUID: "GPU-aaaa", Allocatable: 16}, gpu.Device{UUID: "GPU-bbbb", Allocatable: 16}))
	w.Cache.SetNode("big", inventory(gpu.Device{UUID: "GPU-cccc", Allocatable: 80}))
	w.Cache.SetNode("plain", gpu.Inventory{})
	return w
}

func inventory(devices ...gpu.Device) gpu.Inventory {
	for i := range devices {
		devices[i].Index = i
		devices[i].MemoryMiB = int64(devices[i].Allocatable) * 1024
	}
	return gpu.Inventory{UnitMiB: 1024, Devices: devices}
}

// pod adds a waiting pod to the cluster.
func (w *world) pod(name string, units string) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name:      "main",
			Resources: v1.ResourceRequirements{Limits: v1.ResourceList{w.Names.GPUMem(): resource.MustParse(units)}},
		}}},
	}
	w.cluster.pods["team/"+name] = pod
	return pod
}

func (w *world) filter(pod *v1.Pod) *extenderv1.ExtenderFilterResult {
	return w.Filter(context.Background(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &[]string{"pair", "big", "plain", "unknown"}})
}

func (w *world) bind(pod *v1.Pod, node string) string {
	return w.Bind(context.Background(), &extenderv1.ExtenderBindingArgs{
		PodNamespace: pod.Namespace, PodName: pod.Name, PodUID: pod.UID, Node: node,
	}).Error
}

// bindLost binds a pod to a node, and the response of the API server is lost.
func (w *world) bindLost(t testing.TB, pod *v1.Pod, node string) {
	t.Helper()
	w.cluster.bindErr = errLost
	if w.bind(pod, node) == "" {
		t.Fatal("want an error")
	}
}

// devicesOf returns the devices of a node on which the cache has a pod.
func (w *world) devicesOf(node string, pod *v1.Pod) []gpu.UUID {
	n, _ := w.Cache.Node(node)
	var out []gpu.UUID
	for _, d := range n.Devices {
		for _, h := range d.Pods {
			if h.Pod.UID == string(pod.UID) {
				out = append(out, d.UUID)
			}
		}
	}
	return out
}

const noGPU = "node(s) unfit: the node offers no GPU memory: its device plugin has found no GPU, or has not reported yet"

// kube-scheduler uses a message as the format string of an event, and also writes it into the pod's
// condition.
func TestNoAnswerHasAPercentSign(t *testing.T) {
	w := newWorld(t)
	globbed, unread, withCores := w.pod("globbed", "3"), w.pod("unread", "3"), w.pod("with-cores", "3")
	globbed.Annotations = map[string]string{w.Names.Model(): "a%sb%d"}
	unread.Annotations = map[string]string{w.Names.Count(): "100%"}
	withCores.Spec.Containers[0].Resources.Limits[w.Names.GPUCore()] = resource.MustParse("120")
	for pod, want := range map[*v1.Pod]string{
		globbed: "wants a GPU that matches a％sb％d;", unread: `gpu-count: "100％": want`, withCores: "needs 3 GiB and 120 per cent of cores on",
	} {
		answers := map[string]string{"bind": w.bind(pod, "pair"), "filter": w.filter(pod).FailedAndUnresolvableNodes["pair"]}
		for verb, got := range answers {
			if strings.Contains(got, "%") || !strings.Contains(got, want) {
				t.Errorf("%s of pod %s: %q, want %q in it and no percent sign", verb, pod.Name, got, want)
			}
		}
	}
	w.Missing = func() string { return "the list is at 50%" }
	if got, want := w.filter(globbed).Error, "gpumem-extender is not ready: the list is at 50％"; got != want {
		t.Errorf("filter: %q, want %q", got, want)
	}
}

func TestFilterSaysWhereAPodFitsAndWhyNotElsewhere(t *testing.T) {
	for _, tc := range []struct {
		name             string
		units            string
		annotations      map[string]string
		taken            []string // units of the pods that are already on pair
		wantFits         []string
		wantFailed       map[string]string
		wantUnresolvable map[string]string
	}{
		{
			name: "a small pod fits every GPU node", units: "3",
			wantFits:         []string{"pair", "big"},
			wantUnresolvable: map[string]string{"plain": noGPU, "unknown": noGPU},
		},
		{
			name: "the node's sum does not count", units: "3", taken: []string{"14", "14"},
			wantFits: []string{"big"},
			wantFailed: map[string]string{
				"pair": "node(s) unfit: the pod needs 3 GiB on one GPU; free: GPU0 2, GPU1 2 (4 in all, fragmented)",
			},
			wantUnresolvable: map[string]string{"plain": noGPU, "unknown": noGPU},
		},
		{
			name: "larger than any GPU of the node", units: "40",
			wantFits: []string{"big"},
			wantUnresolvable: map[string]string{
				"pair":  "node(s) unfit: the pod needs 40 GiB on one GPU; the largest that qualifies here has 16 GiB: ask for less",
				"plain": noGPU, "unknown": noGPU,
			},
		},
		{
			name: "an annotation that cannot be read fails every node", units: "3",
			annotations: map[string]string{"gpumem.dev/gpu-count": "two"},
			wantFits:    []string{},
			wantUnresolvable: func() map[string]string {
				const reason = `node(s) unfit: annotation gpumem.dev/gpu-count: "two": want a number of GPUs from 1 to 64`
				return map[string]string{"pair": reason, "big": reason, "plain": reason, "unknown": reason}
			}(),
		},
		{
			name: "a negative amount", units: "-3", wantFits: []string{},
			wantUnresolvable: func() map[string]string {
				const reason = `node(s) unfit: container "main": gpumem.dev/gpu-mem is -3, want 0 or more`
				return map[string]string{"pair": reason, "big": reason, "plain": reason, "unknown": reason}
			}(),
		},
		{
			name: "a pod that asks for nothing passes", units: "0",
			wantFits: []string{"pair", "big", "plain", "unknown"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			for i, units := range tc.taken {
				other := w.pod(fmt.Sprint("taken-", i), units)
				if problem := w.bind(other, "pair"); problem != "" {
					t.Fatal(problem)
				}
			}
			pod := w.pod("pod", tc.units)
			pod.Annotations = tc.annotations
			before := w.Cache.Nodes()
			got := w.filter(pod)
			want := &extenderv1.ExtenderFilterResult{
				NodeNames:   &tc.wantFits,
				FailedNodes: tc.wantFailed, FailedAndUnresolvableNodes: tc.wantUnresolvable,
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("filter (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, w.Cache.Nodes(), cmpopts.IgnoreFields(placement.Node{}, "Expected")); diff != "" {
				t.Errorf("filter changed the cache (-before +after):\n%s", diff)
			}
		})
	}
}

// The Node object in the request determines the GPUs of a node that does not exist yet.
func TestFilterAnswersForNodesItIsGivenInFull(t *testing.T) {
	w := newWorld(t)
	value, err := api.EncodeInventory(inventory(gpu.Device{UUID: "GPU-dddd", Allocatable: 24}))
	if err != nil {
		t.Fatal(err)
	}
	template := func(name string, change ...func(*v1.Node)) v1.Node {
		n := v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
		for _, c := range change {
			c(&n)
		}
		return n
	}
	annotated := func(n *v1.Node) { n.Annotations[w.Names.Inventory()] = value }
	labelled := func(units, count, product string) func(*v1.Node) {
		return func(n *v1.Node) {
			n.Labels["nvidia.com/gpu.count"], n.Labels["nvidia.com/gpu.product"], n.Labels["nvidia.com/gpu.memory"] = count, product, "24564"
			n.Status.Allocatable = v1.ResourceList{w.Names.GPUMem(): resource.MustParse(units)}
		}
	}
	nodes := &v1.NodeList{Items: []v1.Node{
		template("annotated", annotated), template("labelled", labelled("46", "2", "NVIDIA-L4")),
		template("other", labelled("46", "2", "NVIDIA-A10")), template("split", labelled("64", "4", "NVIDIA-L4")),
		template("broken", labelled("46", "two", "NVIDIA-L4")), template("bare"),
		template("pair"), // the cache has this node, so the cached state is used
	}}
	for _, tc := range []struct {
		name             string
		annotations      map[string]string
		wantFits         []string
		wantUnresolvable map[string]string
	}{
		{
			name: "by memory", wantFits: []string{"annotated", "labelled", "other"},
			wantUnresolvable: map[string]string{
				"pair":   "node(s) unfit: the pod needs 20 GiB on one GPU; the largest that qualifies here has 16 GiB: ask for less, or for more GPUs",
				"split":  "node(s) unfit: the pod needs 20 GiB on one GPU; the largest that qualifies here has 16 GiB: ask for less, or for more GPUs",
				"broken": `node(s) unfit: label nvidia.com/gpu.count: "two": want a number from 0 to 1024`,
				"bare":   noGPU,
			},
		},
		{
			name: "by model", wantFits: []string{"labelled"}, annotations: map[string]string{"gpumem.dev/gpu-model": "L4"},
			wantUnresolvable: map[string]string{
				"annotated": "node(s) unfit: the pod wants a GPU that matches L4; this node has a GPU of unknown model: change gpu-model",
				"other":     "node(s) unfit: the pod wants a GPU that matches L4; this node has NVIDIA A10: change gpu-model",
				"pair":      "node(s) unfit: the pod wants a GPU that matches L4; this node has a GPU of unknown model: change gpu-model",
				"split":     "node(s) unfit: the pod needs 20 GiB on one GPU that matches L4; the largest that qualifies here has 16 GiB: ask for less, or for more GPUs",
				"broken":    `node(s) unfit: label nvidia.com/gpu.count: "two": want a number from 0 to 1024`,
				"bare":      noGPU,
			},
		},
		{
			name: "by count", wantFits: []string{"labelled", "other", "pair", "split"}, annotations: map[string]string{"gpumem.dev/gpu-count": "2"},
			wantUnresolvable: map[string]string{
				"annotated": "node(s) unfit: the pod needs 10 GiB on each of 2 GPUs; large enough here: 1: ask for fewer GPUs, or for less on each",
				"broken":    `node(s) unfit: label nvidia.com/gpu.count: "two": want a number from 0 to 1024`,
				"bare":      noGPU,
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := w.pod("pod", "20")
			pod.Annotations = tc.annotations
			got := w.Filter(context.Background(), &extenderv1.ExtenderArgs{Pod: pod, Nodes: nodes})
			var fits []string
			for _, n := range got.Nodes.Items {
				fits = append(fits, n.Name)
			}
			slices.Sort(fits)
			if diff := cmp.Diff(tc.wantFits, fits); diff != "" || got.NodeNames != nil {
				t.Errorf("fits, by objects and not by names %v (-want +got):\n%s", got.NodeNames, diff)
			}
			if diff := cmp.Diff(extenderv1.FailedNodesMap(tc.wantUnresolvable), got.FailedAndUnresolvableNodes); diff != "" {
				t.Errorf("unresolvable (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheSampleOfATemplateNode(t *testing.T) {
	text, err := os.ReadFile("../../../config/samples/template-node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var template v1.Node
	if err := yaml.UnmarshalStrict(text, &template); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	for units, want := range map[string]string{
		"22": "",
		"23": "node(s) unfit: the pod needs 23 GiB on one GPU; the largest that qualifies here has 22 GiB: ask for less, or for more GPUs",
	} {
		got := w.Filter(context.Background(), &extenderv1.ExtenderArgs{Pod: w.pod("pod", units), Nodes: &v1.NodeList{Items: []v1.Node{template}}})
		if reason := got.FailedAndUnresolvableNodes[template.Name]; reason != want || len(got.Nodes.Items) != 1 && want == "" {
			t.Errorf("%s units: %q, want %q", units, reason, want)
		}
	}
}

func TestNotReadyIsSaid(t *testing.T) {
	w := newWorld(t)
	w.Missing = func() string { return "the first list of pods has not been worked off" }
	const want = "gpumem-extender is not ready: the first list of pods has not been worked off"
	pod := w.pod("pod", "3")
	if got := w.filter(pod).Error; got != want {
		t.Errorf("filter: %q, want %q", got, want)
	}
	if got := w.bind(pod, "pair"); got != want {
		t.Errorf("bind: %q, want %q", got, want)
	}
}

func TestPrioritizeLetsOneNodeStandAlone(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		policy string
		want   extenderv1.HostPriorityList
	}{
		{"binpack", extenderv1.HostPriorityList{{Host: "big", Score: 5}, {Host: "pair", Score: 10}, {Host: "plain", Score: 0}}},
		{"spread", extenderv1.HostPriorityList{{Host: "big", Score: 10}, {Host: "pair", Score: 5}, {Host: "plain", Score: 0}}},
	} {
		t.Run(tc.policy, func(t *testing.T) {
			pod := w.pod("pod", "3")
			pod.Annotations = map[string]string{w.Names.Policy(): tc.policy}
			got := w.Prioritize(context.Background(), &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &[]string{"big", "pair", "plain"}})
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("scores (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPrioritizeWithoutANodeThatFits(t *testing.T) {
	w := newWorld(t)
	for _, nodes := range [][]string{{}, {"plain"}, {"plain", "gone"}} {
		for _, h := range *w.Prioritize(context.Background(), &extenderv1.ExtenderArgs{Pod: w.pod("pod", "3"), NodeNames: &nodes}) {
			if h.Score != 0 {
				t.Errorf("node %s has score %d", h.Host, h.Score)
			}
		}
	}
}

func TestBindWritesNodeAndGPUAtOnce(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("pod", "3")
	if problem := w.bind(pod, "pair"); problem != "" {
		t.Fatal(problem)
	}
	want := []*v1.Binding{{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: "pod", UID: "uid-pod",
			Annotations: map[string]string{
				"gpumem.dev/assignment": `{"v":1,"unitMiB":1024,"enforcement":"advisory","gpus":[{"uuid":"GPU-aaaa","index":0,"units":3}]}`,
				"gpumem.dev/gpu-index":  "0",
			},
		},
		Target: v1.ObjectReference{Kind: "Node", Name: "pair"},
	}}
	if diff := cmp.Diff(want, w.cluster.bindings); diff != "" {
		t.Errorf("bindings (-want +got):\n%s", diff)
	}
	if problem := w.bind(pod, "pair"); problem != "" {
		t.Errorf("the same bind again: %s, want success", problem)
	}
	if len(w.cluster.bindings) != 1 {
		t.Errorf("%d bindings were sent, want 1", len(w.cluster.bindings))
	}
	if got := w.bind(pod, "big"); !strings.Contains(got, "is bound to node pair already") {
		t.Errorf("bind to another node: %q, want that it is bound to pair", got)
	}
}

func TestBindWhoseAnswerIsAnError(t *testing.T) {
	for _, tc := range []struct {
		name     string
		bindErr  error
		landed   bool
		readErr  error
		want     string // part of the error; empty: success
		wantHeld bool
	}{
		{name: "refused: the memory is free again", bindErr: errRefused, want: "refused"},
		{name: "refused because it is bound there: success", bindErr: errRefused, landed: true, wantHeld: true},
		{name: "lost, and it landed: success", bindErr: errLost, landed: true, wantHeld: true},
		{name: "lost, and not there yet: reserved until it is known", bindErr: errLost, want: "outcome is not known", wantHeld: true},
		{name: "lost, and the pod cannot be read either", bindErr: errLost, landed: true, readErr: errLost, want: "outcome is not known", wantHeld: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			pod := w.pod("pod", "3")
			w.cluster.bindErr, w.cluster.landed, w.cluster.readErr = tc.bindErr, tc.landed, tc.readErr
			got := w.bind(pod.DeepCopy(), "pair")
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("bind: %q, want %q", got, tc.want)
			}
			if held := len(w.devicesOf("pair", pod)) == 1; held != tc.wantHeld {
				t.Errorf("memory held: %t, want %t", held, tc.wantHeld)
			}
		})
	}
}

// The pod fits the node of its lost binding, although no memory is free there: the pod's own memory is
// reserved.
func TestAPodWithAnUnknownOutcomeFitsWhereItMayBe(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("pod", "80")
	w.bindLost(t, pod, "big")
	if diff := cmp.Diff(&[]string{"big"}, w.filter(pod).NodeNames); diff != "" {
		t.Errorf("fits (-want +got):\n%s", diff)
	}
}

func TestAPodWithAnUnknownOutcomeStaysWithItsNode(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("pod", "3")
	w.bindLost(t, pod, "pair")
	got := w.filter(pod)
	if diff := cmp.Diff(&[]string{"pair"}, got.NodeNames); diff != "" {
		t.Errorf("fits (-want +got):\n%s", diff)
	}
	if got, want := got.FailedNodes["big"], "node(s) unfit: the outcome of binding the pod to node pair is not known yet"; got != want {
		t.Errorf("big: %q, want %q", got, want)
	}

	w.ReviewAssumed(context.Background(), 30*time.Second)
	if len(w.devicesOf("pair", pod)) != 1 {
		t.Error("forgotten before its time")
	}
	w.now = w.now.Add(31 * time.Second)
	w.ReviewAssumed(context.Background(), 30*time.Second)
	if len(w.devicesOf("pair", pod)) != 0 {
		t.Error("not forgotten although the API server says that it is not bound")
	}
}

// The refusal of the second binding does not determine the outcome of the first one, which may still land.
func TestARefusedRepetitionKeepsWhatTheFirstBindingMayStillTake(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("pod", "3")
	for _, w.cluster.bindErr = range []error{errLost, errRefused} {
		if w.bind(pod, "pair") == "" {
			t.Fatal("want an error")
		}
	}
	if len(w.devicesOf("pair", pod)) != 1 {
		t.Error("the memory is not reserved any more")
	}
}

// A repeated Bind that is refused before it is sent must not restrict the pod to its node any longer.
func TestAPodWhoseGPUHasGoneIsFreeToGoElsewhere(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("pod", "3")
	w.bindLost(t, pod, "pair")
	w.Cache.SetNode("pair", inventory(gpu.Device{UUID: "GPU-bbbb", Allocatable: 16}))
	for range 4 {
		w.now = w.now.Add(10 * time.Second)
		if w.bind(pod, "pair") == "" {
			t.Fatal("want an error")
		}
		w.ReviewAssumed(context.Background(), 30*time.Second)
	}
	if _, _, ok := w.Cache.PodNode("uid-pod"); ok {
		t.Error("still assumed")
	}
}

// If the watch has never shown the pod, it does not show the end of the pod either. The binder must detect
// it.
func TestAPodThatHasEndedWhenItsBindingIsSettledHoldsNothing(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("pod", "3")
	w.cluster.bindErr, w.cluster.landed = errLost, true
	pod.Status.Phase = v1.PodFailed // the kubelet has rejected the pod at once
	if problem := w.bind(pod, "pair"); problem != "" {
		t.Fatal(problem)
	}
	if got := w.devicesOf("pair", pod); len(got) > 0 {
		t.Errorf("holds %v", got)
	}
}

func TestReviewConfirmsWhatTheWatchMissed(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("pod", "3")
	w.cluster.bindErr, w.cluster.landed, w.cluster.readErr = errLost, true, errLost
	if w.bind(pod.DeepCopy(), "pair") == "" {
		t.Fatal("want an error")
	}
	w.now = w.now.Add(time.Minute)
	w.ReviewAssumed(context.Background(), 30*time.Second)
	if _, assumed, _ := w.Cache.PodNode("uid-pod"); !assumed {
		t.Error("settled without an answer from the API server")
	}
	w.cluster.readErr = nil
	w.ReviewAssumed(context.Background(), 30*time.Second)
	if _, assumed, ok := w.Cache.PodNode("uid-pod"); assumed || !ok {
		t.Errorf("assumed %t, known %t; want confirmed", assumed, ok)
	}

	// The watch has never shown the pod, so it does not show its end.
	delete(w.cluster.pods, "team/pod")
	w.now = w.now.Add(time.Minute)
	w.ReviewAssumed(context.Background(), 30*time.Second)
	if _, _, ok := w.Cache.PodNode("uid-pod"); ok {
		t.Error("gone, and still counted")
	}
}

// madeAgain replaces a pod by another pod of the same name, on the given node; empty: on no node.
func (w *world) madeAgain(pod *v1.Pod, node string) {
	other := w.pod(pod.Name, "3")
	other.UID, other.Spec.NodeName = pod.UID+"-again", node
}

// A read that finds another pod of the same name proves only that the first pod is gone.
func TestAPodMadeAgainUnderItsNameIsAnother(t *testing.T) {
	for name, node := range map[string]string{"the other waits": "", "the other is on the node": "pair"} {
		t.Run(name, func(t *testing.T) {
			t.Run("when its binding fails", func(t *testing.T) {
				w := newWorld(t)
				pod := w.pod("pod", "3")
				w.cluster.bindErr = errLost
				w.cluster.binding = func() { w.madeAgain(pod, node) }
				if got := w.bind(pod, "pair"); !strings.Contains(got, errLost.Error()) || strings.Contains(got, "outcome is not known") {
					t.Errorf("bind: %q, want that it has failed", got)
				}
				if _, _, ok := w.Cache.PodNode("uid-pod"); ok {
					t.Error("still assumed")
				}
			})
			t.Run("when it is looked at again", func(t *testing.T) {
				w := newWorld(t)
				pod := w.pod("pod", "3")
				w.bindLost(t, pod, "pair")
				w.madeAgain(pod, node)
				w.now = w.now.Add(31 * time.Second)
				w.ReviewAssumed(context.Background(), 30*time.Second)
				if _, _, ok := w.Cache.PodNode("uid-pod"); ok {
					t.Error("still assumed")
				}
			})
		})
	}
}

// A read that shows a pod without a node proves nothing about a binding that was sent after the read.
func TestAReviewLeavesWhatIsBoundMeanwhile(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("pod", "3")
	w.bindLost(t, pod, "pair")
	w.now = w.now.Add(31 * time.Second)
	w.cluster.reading = func() { w.bind(pod, "pair") }
	w.ReviewAssumed(context.Background(), 30*time.Second)
	if len(w.devicesOf("pair", pod)) != 1 {
		t.Error("the memory of a binding that may still land is not reserved any more")
	}
}

func TestBindRefuses(t *testing.T) {
	w := newWorld(t)
	fits := w.pod("fits", "3")
	for _, tc := range []struct {
		name string
		args extenderv1.ExtenderBindingArgs
		want string
	}{
		{"an empty request", extenderv1.ExtenderBindingArgs{}, "must name namespace, name and UID"},
		{"a pod that is gone", extenderv1.ExtenderBindingArgs{PodNamespace: "team", PodName: "gone", PodUID: "x", Node: "pair"}, "pod team/gone is gone"},
		{"a pod made again under its name", extenderv1.ExtenderBindingArgs{PodNamespace: "team", PodName: "fits", PodUID: "old", Node: "pair"}, "is another one now: it has UID uid-fits, not old"},
		{"an unknown node", extenderv1.ExtenderBindingArgs{PodNamespace: "team", PodName: "fits", PodUID: fits.UID, Node: "nowhere"}, strings.TrimPrefix(noGPU, "node(s) unfit: ")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := w.Bind(context.Background(), &tc.args).Error; !strings.Contains(got, tc.want) {
				t.Errorf("bind: %q, want %q", got, tc.want)
			}
		})
	}
	if len(w.cluster.bindings) != 0 {
		t.Errorf("%d bindings were sent, want none", len(w.cluster.bindings))
	}
}

func TestBindOfAPodThatAsksForNothing(t *testing.T) {
	w := newWorld(t)
	pod := w.pod("nothing", "0")
	if problem := w.bind(pod, "plain"); problem != "" {
		t.Errorf("bind: %s, want success", problem)
	}
	if pod.Spec.NodeName != "plain" || len(pod.Annotations) != 0 {
		t.Errorf("on %q with annotations %v, want on plain with none", pod.Spec.NodeName, pod.Annotations)
	}
}

func TestBindReadsAPodThatTheWatchHasNotToldOf(t *testing.T) {
	w := newWorld(t)
	w.cluster.unheard = true
	if problem := w.bind(w.pod("pod", "3"), "pair"); problem != "" {
		t.Errorf("bind: %s, want success", problem)
	}
}

func TestManyBindsAtOnceNeverOvercommit(t *testing.T) {
	w := newWorld(t)
	var pods []*v1.Pod
	for i := range 100 {
		pods = append(pods, w.pod(fmt.Sprint("pod-", i), "3"))
	}
	var wg sync.WaitGroup
	for _, pod := range pods {
		wg.Go(func() {
			w.filter(pod)
			w.bind(pod, "pair")
		})
	}
	wg.Wait()
	node, _ := w.Cache.Node("pair")
	for _, d := range node.Devices {
		if d.Requested != 15 {
			t.Errorf("%s holds %d units, want 15 of 16", d.UUID, d.Requested)
		}
	}
	if len(w.cluster.bindings) != 10 {
		t.Errorf("%d bindings were sent, want 10", len(w.cluster.bindings))
	}
}

func TestRoutesAnswerEveryBody(t *testing.T) {
	w := newWorld(t)
	routes := w.Routes("v1.2.3")
	post := func(path, body string) (int, string) {
		t.Helper()
		recorder := httptest.NewRecorder()
		routes.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
		if !json.Valid(recorder.Body.Bytes()) {
			t.Errorf("%s %.40q: the answer is not JSON: %s", path, body, recorder.Body)
		}
		return recorder.Code, strings.ReplaceAll(recorder.Body.String(), "\\", "")
	}
	for body, want := range map[string]struct {
		status int
		text   string
	}{
		``:                             {http.StatusBadRequest, "the body is empty"},
		`null`:                         {http.StatusBadRequest, "the body is null"},
		`[]`:                           {http.StatusBadRequest, "unmarshal JSON array into"},
		`"x"`:                          {http.StatusBadRequest, "unmarshal JSON string into"},
		`{"Pod":`:                      {http.StatusBadRequest, "unexpected EOF"},
		`{"Pod":7,"Node":7}`:           {http.StatusBadRequest, "unmarshal JSON number into"},
		`{} {}`:                        {http.StatusBadRequest, "after top-level value"},
		strings.Repeat(" ", maxBody+1): {http.StatusRequestEntityTooLarge, "the body is larger than"},
	} {
		for _, path := range []string{"/filter", "/prioritize", "/preempt", "/bind"} {
			status, text := post(path, body)
			if status != want.status || !strings.Contains(text, want.text) {
				t.Errorf("%s %.40q: %d %s, want %d with %q", path, body, status, text, want.status, want.text)
			}
		}
	}
	for path, want := range map[string]string{
		"/filter":     "the request names no pod",
		"/prioritize": "[]",
		"/preempt":    `{"NodeNameToMetaVictims":{}}`,
		"/bind":       "must name namespace, name and UID",
	} {
		if status, text := post(path, `{}`); status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s {}: %d %s, want 200 with %q", path, status, text, want)
		}
	}
	many := `{"Pod":{},"NodeNames":["n"` + strings.Repeat(`,"n"`, maxNodes) + `]}`
	if status, text := post("/filter", many); status != http.StatusOK || !strings.Contains(text, "the request names 100001 nodes, and 100000 is the most") {
		t.Errorf("/filter of too many nodes: %d %.200s", status, text)
	}
}

func TestRoutesSurviveAPanic(t *testing.T) {
	w := newWorld(t)
	w.Missing = func() string { panic("a bug") }
	recorder := httptest.NewRecorder()
	w.Routes("v1").ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/filter", strings.NewReader(
		`{"Pod":{"spec":{"containers":[{"resources":{"limits":{"gpumem.dev/gpu-mem":"3"}}}]}},"NodeNames":["pair"]}`)))
	if recorder.Code != http.StatusInternalServerError {
		t.Errorf("status %d, want 500", recorder.Code)
	}
}

// FuzzRoutes sends arbitrary bodies to every route. Each gets a response, and only Bind changes allocated
// memory.
func FuzzRoutes(f *testing.F) {
	f.Add("/filter", `{"Pod":{"metadata":{"name":"pod"},"spec":{"containers":[{"resources":{"limits":{"gpumem.dev/gpu-mem":"3"}}}]}},"NodeNames":["pair"]}`)
	f.Add("/filter", `{"Pod":{"metadata":{"annotations":{"gpumem.dev/gpu-count":"-1"}}},"Nodes":{"items":[{"metadata":{"name":"x","annotations":{"gpumem.dev/inventory":"{}"}}}]}}`)
	f.Add("/filter", `{"Pod":{"spec":{"containers":[{"resources":{"limits":{"gpumem.dev/gpu-mem":"3"}}}]}},"Nodes":{"items":[{"metadata":{"name":"x","labels":{"nvidia.com/gpu.count":"2","nvidia.com/gpu.memory":"15360"}},"status":{"allocatable":{"gpumem.dev/gpu-mem":"28"}}}]}}`)
	f.Add("/prioritize", `{"Pod":{},"NodeNames":["pair","pair",""]}`)
	f.Add("/preempt", `{"Pod":{"metadata":{"uid":"x"},"spec":{"priority":9,"containers":[{"resources":{"limits":{"gpumem.dev/gpu-mem":"9"}}}]}},"NodeNameToMetaVictims":{"pair":{"Pods":[{"UID":"uid-low-1"},null,{}]},"big":null},"NodeNameToVictims":{"big":{"Pods":[null,{}]}}}`)
	f.Add("/bind", `{"PodName":"pod","PodNamespace":"team","PodUID":"uid-pod","Node":"pair"}`)
	f.Fuzz(func(t *testing.T, path, body string) {
		w, _ := crowded(t)
		w.pod("pod", "3")
		w.cluster.bindings = nil
		w.Cache.RemovePod("uid-bulk")
		routes := w.Routes("v1")
		w.rechecks = recheckBudget{spent: recheckBurst * recheckTimeout, last: w.now} // no wait: otherwise the fuzzer would mostly wait
		if !slices.Contains([]string{"/filter", "/prioritize", "/preempt", "/bind"}, path) {
			path = "/filter"
		}
		before := w.Cache.Nodes()
		recorder := httptest.NewRecorder()
		routes.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
		if recorder.Code == http.StatusInternalServerError {
			t.Errorf("%s %q: 500", path, body)
		}
		if path == "/preempt" {
			var answer extenderv1.ExtenderPreemptionResult
			if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
				t.Errorf("%s %q: %v", path, body, err)
			}
			for node, v := range answer.NodeNameToMetaVictims {
				if v == nil || len(v.Pods) == 0 || v.NumPDBViolations < 0 {
					t.Errorf("%s %q: node %s with victims %v, which kube-scheduler takes for an error", path, body, node, v)
				}
			}
		}
		if path != "/bind" {
			if diff := cmp.Diff(before, w.Cache.Nodes(), cmpopts.IgnoreFields(placement.Node{}, "Expected")); diff != "" {
				t.Errorf("%s %q changed the cache (-before +after):\n%s", path, body, diff)
			}
		}
		if sent := len(w.cluster.bindings); sent != len(w.devicesOf("pair", w.cluster.pods["team/pod"]))+len(w.devicesOf("big", w.cluster.pods["team/pod"])) {
			t.Errorf("%s %q: %d bindings were sent, and the books say otherwise", path, body, sent)
		}
	})
}
