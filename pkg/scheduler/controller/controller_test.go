package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/nodefilter"
)

const inventory = `{"v":1,"unitMiB":1024,"gpus":[{"uuid":"GPU-a","index":0,"memoryMiB":16384,"units":16,"healthy":true},{"uuid":"GPU-b","index":1,"memoryMiB":16384,"units":16,"healthy":true}]}`

var names = kubetest.Names

func node(annotation string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Annotations: map[string]string{
		"gpumem.dev/inventory": annotation, "other.io/key": "long",
	}}}
}

// pod returns a pod that is bound to the node and has 3 units of the device.
func pod(name, uid, device string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID(uid),
			Annotations: map[string]string{"gpumem.dev/assignment": `{"v":1,"unitMiB":1024,"gpus":[{"uuid":"` + device + `","index":0,"units":3}]}`},
		},
		Spec: v1.PodSpec{NodeName: "node", Containers: []v1.Container{{
			Name: "main", Image: "long", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("3")}},
		}}},
		Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}},
	}
}

// requested returns the allocated units of each device of the node, by index.
func requested(c *cache.Cache) []gpu.Units {
	n, _ := c.Node("node")
	var out []gpu.Units
	for _, d := range n.Devices {
		out = append(out, d.Requested)
	}
	return out
}

func TestBooks(t *testing.T) {
	terminating := pod("web", "1", "GPU-a")
	terminating.DeletionTimestamp = &metav1.Time{}
	done := pod("web", "1", "GPU-a")
	done.Status.Phase = v1.PodSucceeded
	waiting := pod("web", "1", "GPU-a")
	waiting.Spec.NodeName = ""
	broken := pod("web", "1", "GPU-a")
	broken.Annotations["gpumem.dev/assignment"] = "{"

	type step func(pods, nodes toolscache.ResourceEventHandler)
	add := func(p *v1.Pod) step {
		return func(pods, _ toolscache.ResourceEventHandler) { pods.OnAdd(p, false) }
	}
	update := func(before, after *v1.Pod) step {
		return func(pods, _ toolscache.ResourceEventHandler) { pods.OnUpdate(before, after) }
	}
	remove := func(obj any) step {
		return func(pods, _ toolscache.ResourceEventHandler) { pods.OnDelete(obj) }
	}
	for _, tc := range []struct {
		name  string
		steps []step
		want  []gpu.Units
	}{
		{"a bound pod counts", []step{add(pod("web", "1", "GPU-a"))}, []gpu.Units{3, 0}},
		{"told twice, counts once", []step{add(pod("web", "1", "GPU-a")), add(pod("web", "1", "GPU-a"))}, []gpu.Units{3, 0}},
		{"a pod that is not bound does not count", []step{add(waiting)}, []gpu.Units{0, 0}},
		{"a pod that is being deleted counts", []step{add(pod("web", "1", "GPU-a")), update(pod("web", "1", "GPU-a"), terminating)}, []gpu.Units{3, 0}},
		{"a terminal pod does not", []step{add(pod("web", "1", "GPU-a")), update(pod("web", "1", "GPU-a"), done)}, []gpu.Units{0, 0}},
		{"a correction moves it", []step{add(pod("web", "1", "GPU-a")), update(pod("web", "1", "GPU-a"), pod("web", "1", "GPU-b"))}, []gpu.Units{0, 3}},
		{"gone", []step{add(pod("web", "1", "GPU-a")), remove(pod("web", "1", "GPU-a"))}, []gpu.Units{0, 0}},
		{"gone, and the deletion was missed", []step{add(pod("web", "1", "GPU-a")), remove(toolscache.DeletedFinalStateUnknown{Key: "team/web", Obj: pod("web", "1", "GPU-a")})}, []gpu.Units{0, 0}},
		{"made again under its name, told as an update", []step{add(pod("web", "1", "GPU-a")), update(pod("web", "1", "GPU-a"), pod("web", "2", "GPU-b"))}, []gpu.Units{0, 3}},
		{"the old one's deletion comes after the new one", []step{add(pod("web", "2", "GPU-b")), remove(pod("web", "1", "GPU-a"))}, []gpu.Units{0, 3}},
		{"a broken annotation is nowhere and stops nothing", []step{add(broken), add(pod("db", "2", "GPU-b"))}, []gpu.Units{0, 3}},
		{"things that are no pods", []step{remove("x"), remove(nil), func(pods, nodes toolscache.ResourceEventHandler) { pods.OnAdd(7, false); nodes.OnAdd("x", false) }}, []gpu.Units{0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			books := &Feeder{Log: zaptest.NewLogger(t), Names: names(t), Cache: cache.New()}
			pods, nodes := books.PodHandler(), books.NodeHandler()
			nodes.OnAdd(node(inventory), false)
			for _, s := range tc.steps {
				s(pods, nodes)
			}
			if diff := cmp.Diff(tc.want, requested(books.Cache)); diff != "" {
				t.Errorf("requested (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBooksOfNominatedPods(t *testing.T) {
	nominated := func(change ...func(*v1.Pod)) *v1.Pod {
		p := pod("web", "1", "GPU-a")
		p.Annotations = nil
		p.Spec.NodeName, p.Spec.Priority, p.Status.NominatedNodeName = "", new(int32(7)), "node"
		for _, c := range change {
			c(p)
		}
		return p
	}
	waits := []placement.Holding{{
		Pod: placement.PodRef{Namespace: "team", Name: "web", UID: "1"},
		Request: placement.Request{
			Containers: placement.NewContainers(placement.Container{Name: "main", Kind: placement.App, Units: 3}), Priority: 7,
		},
	}}
	for _, tc := range []struct {
		name   string
		events []*v1.Pod // the states of a pod; nil at the end: the pod is deleted
		want   []placement.Holding
	}{
		{"nominated", []*v1.Pod{nominated()}, waits},
		{"no longer", []*v1.Pod{nominated(), nominated(func(p *v1.Pod) { p.Status.NominatedNodeName = "" })}, nil},
		{"bound", []*v1.Pod{nominated(), nominated(func(p *v1.Pod) { p.Spec.NodeName = "node" })}, nil},
		{"gone", []*v1.Pod{nominated(), nil}, nil},
		{"failed", []*v1.Pod{nominated(), nominated(func(p *v1.Pod) { p.Status.Phase = v1.PodFailed })}, nil},
		{"being deleted", []*v1.Pod{nominated(), nominated(func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} })}, nil},
		{"it cannot be read", []*v1.Pod{nominated(func(p *v1.Pod) { p.Annotations = map[string]string{"gpumem.dev/gpu-count": "two"} })}, nil},
		{"it asks for no GPU memory", []*v1.Pod{nominated(func(p *v1.Pod) { p.Spec.Containers[0].Resources.Limits = nil })}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			books := &Feeder{Log: zaptest.NewLogger(t), Names: names(t), Cache: cache.New()}
			books.NodeHandler().OnAdd(node(inventory), false)
			handler, last := books.PodHandler(), (*v1.Pod)(nil)
			for _, p := range tc.events {
				switch {
				case last == nil:
					handler.OnAdd(p, false)
				case p == nil:
					handler.OnDelete(last)
				default:
					handler.OnUpdate(last, p)
				}
				last = p
			}
			n, _ := books.Cache.Node("node")
			if diff := cmp.Diff(tc.want, n.Nominated); diff != "" {
				t.Errorf("nominated (-want +got):\n%s", diff)
			}
		})
	}
}

func TestANodeThatCannotBeReadStopsNothing(t *testing.T) {
	books := &Feeder{Log: zaptest.NewLogger(t), Names: names(t), Cache: cache.New()}
	nodes := books.NodeHandler()
	nodes.OnAdd(node("{"), false)
	if n, ok := books.Cache.Node("node"); !ok || len(n.Devices) != 0 {
		t.Errorf("known %t with %d devices, want known with none", ok, len(n.Devices))
	}
	nodes.OnUpdate(nil, node(inventory))
	if n, _ := books.Cache.Node("node"); len(n.Devices) != 2 {
		t.Errorf("%d devices after it was healed, want 2", len(n.Devices))
	}
	nodes.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: node(inventory)})
	if _, ok := books.Cache.Node("node"); ok {
		t.Error("still there after its deletion")
	}
}

func TestControllerIsReadyWhenItHasSeenEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := pod("plain", "3", "")
		plain.Spec.Containers, plain.Spec.Priority = nil, new(int32(5))
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "budget", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x"}}},
			Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, DisruptedPods: map[string]metav1.Time{"web": {}}},
		}
		closed := node(inventory)
		closed.Name, closed.Spec.Unschedulable = "closed", true
		client := fake.NewClientset(node(inventory), closed, pod("web", "1", "GPU-a"), pod("db", "2", "GPU-b"), plain, budget)
		books := cache.New()
		ctl, err := New(zaptest.NewLogger(t), client, names(t), books)
		if err != nil {
			t.Fatal(err)
		}
		if ctl.Missing() == "" {
			t.Error("ready before anything was listed")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); ctl.Run(ctx) }()
		synctest.Wait()
		if missing := ctl.Missing(); missing != "" {
			t.Errorf("not ready: %s", missing)
		}
		if diff := cmp.Diff([]gpu.Units{3, 3}, requested(books)); diff != "" {
			t.Errorf("requested (-want +got):\n%s", diff)
		}
		if ctl.Node("node").Spec.Unschedulable || !ctl.Node("closed").Spec.Unschedulable || ctl.Node("nowhere") != nil {
			t.Error("Node does not answer from the watch")
		}
		if ctl.Pod("team", "web") == nil || ctl.Pod("team", "nobody") != nil {
			t.Error("Pod does not answer from the watch")
		}
		priorities := make(map[string]int32)
		for _, p := range ctl.PodsOn("node") {
			priorities[p.Name] = api.Priority(p)
		}
		if diff := cmp.Diff(map[string]int32{"web": 0, "db": 0, "plain": 5}, priorities); diff != "" {
			t.Errorf("pods on the node (-want +got):\n%s", diff)
		}
		budget.ManagedFields, budget.Spec.MaxUnavailable = nil, nil // unused fields
		if diff := cmp.Diff([]*policyv1.PodDisruptionBudget{budget}, ctl.Budgets("team")); diff != "" {
			t.Errorf("budgets (-want +got):\n%s", diff)
		}
		if len(ctl.PodsOn("")) != 0 || len(ctl.Budgets("other")) != 0 {
			t.Error("pods or budgets of elsewhere")
		}
		cancel()
		<-done
	})
}

// The policy of an exclusive pod becomes invalid.
func TestAPolicyThatCannotBeReadAnyMoreKeepsTheGPUClosed(t *testing.T) {
	books := &Feeder{Log: zaptest.NewLogger(t), Names: names(t), Cache: cache.New()}
	books.NodeHandler().OnAdd(node(inventory), true)
	alone, spoilt := pod("alone", "1", "GPU-a"), pod("alone", "1", "GPU-a")
	alone.Annotations["gpumem.dev/policy"], spoilt.Annotations["gpumem.dev/policy"] = "exclusive", "exklusive"
	books.PodHandler().OnAdd(alone, true)
	books.PodHandler().OnUpdate(alone, spoilt)
	n, _ := books.Cache.Node("node")
	other := placement.Request{Containers: placement.NewContainers(placement.Container{Name: "main", Units: 3}), UUIDs: placement.NewGlobs("GPU-a")}
	if got := placement.Fit(other, n); got.Reason != placement.Occupied || got.Node.Devices[0].Requested != 3 {
		t.Errorf("of another pod: %s", got.Reason)
	}
}

func TestTrimKeepsWhatIsRead(t *testing.T) {
	full := pod("web", "1", "GPU-a")
	full.Annotations["other.io/key"] = "long"
	full.Labels = map[string]string{"app": "web"}
	full.Spec.Priority = new(int32(5))
	full.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)}
	full.DeletionTimestamp = &metav1.Time{}
	full.Spec.Containers[0].Env = []v1.EnvVar{{Name: "SECRET", Value: "x"}}
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
	n := names(t)
	want, err := n.Holding(full)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := Trim(n)(full)
	if err != nil {
		t.Fatal(err)
	}
	small := obj.(*v1.Pod)
	got, err := n.Holding(small)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("holding (-full +trimmed):\n%s", diff)
	}
	if diff := cmp.Diff(full.Labels, small.Labels); diff != "" {
		t.Errorf("labels (-full +trimmed):\n%s", diff)
	}
	waits := pod("waits", "2", "GPU-a")
	unschedulable := v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable}
	made := api.Reservation{Node: "node", GPUs: []gpu.UUID{"GPU-a"}}.Condition(time.Now())
	said := unschedulable
	said.Message = "0/5000 nodes are available"
	waits.Spec.NodeName, waits.Status.Conditions = "", []v1.PodCondition{{Type: v1.PodReadyToStartContainers}, said, made}
	obj, err = Trim(n)(waits)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]v1.PodCondition{unschedulable, made}, obj.(*v1.Pod).Status.Conditions); diff != "" {
		t.Errorf("conditions of a pod that waits (-want +got):\n%s", diff)
	}
	bound := pod("bound", "2", "GPU-a")
	bound.Status.StartTime = &metav1.Time{}
	bound.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}
	obj, err = Trim(n)(bound)
	if err != nil {
		t.Fatal(err)
	}
	if got := obj.(*v1.Pod).Status.Conditions; len(got) > 0 {
		t.Errorf("conditions %v of a pod that the kubelet has admitted, want none: there are very many", got)
	}
	if len(small.Annotations) != 1 || small.Spec.Containers[0].Env != nil || small.ManagedFields != nil {
		t.Errorf("kept too much: %v", small)
	}
	offers := node(inventory)
	offers.Spec.Unschedulable = true
	obj, err = Trim(n)(offers)
	if err != nil {
		t.Fatal(err)
	}
	if got := obj.(*v1.Node); len(got.Annotations) != 1 || !got.Spec.Unschedulable {
		t.Errorf("kept annotations %v of the node, want the inventory alone, and that it is cordoned: %t", got.Annotations, got.Spec.Unschedulable)
	}
}

// TrimNode keeps all fields that kube-scheduler's plugins read.
func TestTrimNode(t *testing.T) {
	want := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"other.io/key": "x"}},
		Spec:       v1.NodeSpec{Unschedulable: true, Taints: []v1.Taint{{Key: "team"}}},
		Status: v1.NodeStatus{
			Allocatable:      v1.ResourceList{v1.ResourceCPU: resource.MustParse("8")},
			Images:           []v1.ContainerImage{{Names: []string{"image"}}},
			Conditions:       []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
			DeclaredFeatures: []string{"feature"},
		},
	}
	full := want.DeepCopy()
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
	full.Status.Capacity = v1.ResourceList{v1.ResourceCPU: resource.MustParse("9")}
	full.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.1"}}
	full.Status.NodeInfo.KernelVersion = "6.12"
	got, err := TrimNode(full)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// Nodes with GPU memory, and pods that wait for it, keep the fields that determine which pods fit which
// nodes. Other objects keep none of these fields, because there are many such objects.
func TestTrimKeepsWhereAPodMayGo(t *testing.T) {
	n := names(t)
	trimmed := func(obj any) any {
		t.Helper()
		small, err := Trim(n)(obj)
		if err != nil {
			t.Fatal(err)
		}
		return small
	}
	full := func() *v1.Node {
		return &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{n.Inventory(): inventory}},
			Spec:       v1.NodeSpec{Taints: []v1.Taint{{Key: "team", Value: "ml", Effect: v1.TaintEffectNoSchedule, TimeAdded: &metav1.Time{}}}, PodCIDR: "10.0.0.0/24"},
			Status: v1.NodeStatus{
				Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("64Gi"), n.GPUMem(): resource.MustParse("32"), n.GPUCore(): resource.MustParse("200")},
				Conditions: []v1.NodeCondition{
					{Type: v1.NodeMemoryPressure, Status: v1.ConditionFalse},
					{Type: v1.NodeReady, Status: v1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.", LastHeartbeatTime: metav1.Now()},
				},
			},
		}
	}
	want := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{n.Inventory(): inventory}},
		Spec:       v1.NodeSpec{Taints: []v1.Taint{{Key: "team", Value: "ml", Effect: v1.TaintEffectNoSchedule}}},
		Status: v1.NodeStatus{
			Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), n.GPUMem(): resource.MustParse("32"), n.GPUCore(): resource.MustParse("200")},
			Conditions:  []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionUnknown}},
		},
	}
	if diff := cmp.Diff(want, trimmed(full())); diff != "" {
		t.Errorf("a node (-want +got):\n%s", diff)
	}
	ready := full()
	ready.Status.Conditions[1].Status = v1.ConditionTrue
	if got := trimmed(ready).(*v1.Node).Status.Conditions; got != nil {
		t.Errorf("conditions of a node that is ready: %v", got)
	}
	plain := full()
	plain.Annotations = nil
	if got := trimmed(plain).(*v1.Node); got.Labels != nil || got.Spec.Taints != nil || got.Status.Conditions != nil {
		t.Errorf("of a node without GPU memory: %v", got)
	}

	waits := pod("waits", "1", "GPU-a")
	waits.Spec.NodeName = ""
	terms := v1.PodSpec{
		SchedulerName: "gpumem", SchedulingGates: []v1.PodSchedulingGate{{Name: "quota"}}, NodeSelector: map[string]string{"zone": "a"},
		Tolerations: []v1.Toleration{{Key: "team", Operator: v1.TolerationOpExists}},
		Affinity:    &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{}}},
	}
	set := func(p *v1.Pod) *v1.Pod {
		p.Spec.SchedulerName, p.Spec.SchedulingGates, p.Spec.NodeSelector = terms.SchedulerName, terms.SchedulingGates, terms.NodeSelector
		p.Spec.Tolerations, p.Spec.Affinity = terms.Tolerations, terms.Affinity.DeepCopy()
		p.Spec.Affinity.PodAffinity = &v1.PodAffinity{}
		return p
	}
	kept := func(p *v1.Pod) v1.PodSpec {
		spec := trimmed(p).(*v1.Pod).Spec
		spec.NodeName, spec.Containers = "", nil
		return spec
	}
	if diff := cmp.Diff(terms, kept(set(waits))); diff != "" {
		t.Errorf("of a pod that waits (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(v1.PodSpec{}, kept(set(pod("bound", "2", "GPU-a")))); diff != "" {
		t.Errorf("of a pod that has a node (-want +got):\n%s", diff)
	}
}

func TestClientTellsRefusalFromUnknownOutcome(t *testing.T) {
	for _, tc := range []struct {
		name        string
		answer      http.HandlerFunc
		wantErr     bool
		wantRefused bool
	}{
		{"written", func(w http.ResponseWriter, _ *http.Request) { status(w, http.StatusCreated, "") }, false, false},
		{"conflict", func(w http.ResponseWriter, _ *http.Request) { status(w, http.StatusConflict, "Conflict") }, true, true},
		{"gone", func(w http.ResponseWriter, _ *http.Request) { status(w, http.StatusNotFound, "NotFound") }, true, true},
		{"the server timed out", func(w http.ResponseWriter, _ *http.Request) { status(w, http.StatusGatewayTimeout, "Timeout") }, true, false},
		{"a proxy gave up", func(w http.ResponseWriter, _ *http.Request) { status(w, http.StatusRequestTimeout, "Timeout") }, true, false},
		{"the server broke", func(w http.ResponseWriter, _ *http.Request) {
			status(w, http.StatusInternalServerError, "InternalError")
		}, true, false},
		{"the connection broke", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var deadline atomic.Value
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				deadline.Store(r.URL.Query().Get("timeout"))
				tc.answer(w, r)
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			c := &Controller{client: client}
			err = c.Bind(t.Context(), &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}})
			if (err != nil) != tc.wantErr {
				t.Errorf("error %v, want one: %t", err, tc.wantErr)
			}
			if got := err != nil && c.Refused(err); got != tc.wantRefused {
				t.Errorf("refused %t, want %t (%v)", got, tc.wantRefused, err)
			}
			if got := deadline.Load(); got != BindDeadline.String() {
				t.Errorf("the server was given %q, want %s", got, BindDeadline)
			}
		})
	}
}

// With the resource version 0, the API server could return an outdated state.
func TestThePodsOfANodeAreReadAsTheyAreNow(t *testing.T) {
	var asked url.Values
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v1.PodList{
			TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []v1.Pod{*pod("web", "1", "GPU-a"), *pod("db", "2", "GPU-b")},
		}) // the client reports a failed write as a failed read
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := (&Controller{client: client}).ReadPodsOn(t.Context(), "node")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, p := range pods {
		found = append(found, p.Name)
	}
	if diff := cmp.Diff([]string{"web", "db"}, found); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	want := url.Values{"fieldSelector": {"status.phase!=Succeeded,status.phase!=Failed,spec.nodeName=node"}}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// bindTo sends a binding to a server with the given responses, in this order. It returns the error of Bind
// and the number of requests. The client's rate limit is one request in 1,000 seconds.
func bindTo(t *testing.T, answers ...http.HandlerFunc) (sent int, err error) {
	t.Helper()
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			status(w, http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		answers[min(int(n.Add(1)), len(answers))-1](w, r)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: 0.001, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := &Controller{client: client}
	if _, err := c.ReadPod(t.Context(), "team", "web"); err != nil { // uses up the rate limit
		t.Fatal(err)
	}
	err = c.Bind(t.Context(), &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}})
	return int(n.Load()), err
}

func busy(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	w.Header().Set("Retry-After", "1")
	status(w, code, reason)
}

// Each binding is sent once. A binding that the API server rejects because it is busy was not written. After
// an internal error of the API server, the outcome is unknown, and the binder must read the pod.
func TestABindingIsSentOnce(t *testing.T) {
	tooMany := func(w http.ResponseWriter, _ *http.Request) {
		busy(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
	}
	broken := func(w http.ResponseWriter, _ *http.Request) {
		busy(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	}
	conflict := func(w http.ResponseWriter, _ *http.Request) {
		status(w, http.StatusConflict, metav1.StatusReasonConflict)
	}
	done := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
	for name, tc := range map[string]struct {
		answers []http.HandlerFunc
		sent    int
		bound   bool
		refused bool
	}{
		"busy":   {[]http.HandlerFunc{tooMany, done}, 1, false, true},
		"broken": {[]http.HandlerFunc{broken, conflict}, 1, false, false},
		"bound":  {[]http.HandlerFunc{done}, 1, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent, err := bindTo(t, tc.answers...)
			refused := err != nil && (*Controller)(nil).Refused(err)
			if sent != tc.sent || (err == nil) != tc.bound || refused != tc.refused {
				t.Errorf("sent %d times, error %v, refused %t; want %d, bound %t, refused %t", sent, err, refused, tc.sent, tc.bound, tc.refused)
			}
		})
	}
}

func TestWhoLeads(t *testing.T) {
	lease := func(holder *string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "scheduler"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: holder}}
	}
	turned := lease(new("a"))
	turned.Spec.LeaseTransitions = new(int32(2))
	resource := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	for name, tc := range map[string]struct {
		lease   *coordinationv1.Lease
		refused error
		want    string
		wantErr bool
	}{
		"one does":               {lease: lease(new("a")), want: "a 0"},
		"one does once more":     {lease: turned, want: "a 2"},
		"none does":              {lease: lease(nil)},
		"it was given back":      {lease: lease(new(""))},
		"there is no Lease":      {},
		"it may not be read":     {refused: apierrors.NewForbidden(resource, "scheduler", nil)},
		"the API server is away": {refused: errors.New("away"), wantErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			if tc.lease != nil {
				client = fake.NewClientset(tc.lease)
			}
			client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) { return tc.refused != nil, nil, tc.refused })
			got, err := (&Controller{client: client, Lease: types.NamespacedName{Namespace: "system", Name: "scheduler"}}).Leader(t.Context())
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("Leader: %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

// Wake changes an annotation and the nomination through the pod's status, and does not change another pod of the
// same name.
func TestWake(t *testing.T) {
	client := fake.NewClientset()
	var patches []clienttesting.PatchActionImpl
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patches = append(patches, action.(clienttesting.PatchActionImpl))
		return true, &v1.Pod{}, nil
	})
	ctl, err := New(zaptest.NewLogger(t), client, names(t), cache.New())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		nominate *string
		status   string // of the patch, as JSON
	}{{nil, "null"}, {new("n1"), `{"nominatedNodeName":"n1"}`}, {new(""), `{"nominatedNodeName":""}`}} {
		patches = nil
		err := ctl.Wake(t.Context(), placement.PodRef{Namespace: "team", Name: "web", UID: "uid-1"}, tc.nominate)
		if err != nil || len(patches) != 1 {
			t.Fatalf("%v, patches %v", err, patches)
		}
		var patch struct {
			Metadata metav1.ObjectMeta
			Status   any
		}
		if err := json.Unmarshal(patches[0].GetPatch(), &patch); err != nil {
			t.Fatal(err)
		}
		at, ok := patch.Metadata.Annotations["gpumem.dev/room-made"]
		if !ok || len(patch.Metadata.Annotations) != 1 || patch.Metadata.UID != "uid-1" || patches[0].GetSubresource() != "status" || patches[0].GetName() != "web" {
			t.Errorf("patch of %s/%s: %s", patches[0].GetName(), patches[0].GetSubresource(), patches[0].GetPatch())
		}
		if status, err := json.Marshal(patch.Status); err != nil || string(status) != tc.status {
			t.Errorf("status %s (%v), want %s", status, err, tc.status)
		}
		if tc.nominate != nil && !strings.HasSuffix(at, " "+*tc.nominate) {
			t.Errorf("annotation %q, want that it ends with %q", at, *tc.nominate)
		}
	}
}

// A binding that never had a connection was not written, whatever the cause.
func TestABindingThatWasNeverSentIsRefused(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for name, tc := range map[string]struct {
		config rest.Config
		within time.Duration
	}{
		"nobody listens": {rest.Config{Host: closed.URL}, time.Minute},
		"its name is not known": {rest.Config{Host: "http://api", Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.DNSError{Err: "no such host", Name: "api", IsNotFound: true}
		}}, time.Minute},
		"it does not speak TLS": {rest.Config{Host: strings.Replace(plain.URL, "http:", "https:", 1)}, time.Minute},
		"no packet comes back": {rest.Config{Host: "http://api", Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}, 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := kubernetes.NewForConfig(&tc.config)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), tc.within)
			defer cancel()
			c := &Controller{client: client}
			if err := c.Bind(ctx, &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}); err == nil || !c.Refused(fmt.Errorf("bind: %w", err)) {
				t.Errorf("not refused: %v", err)
			}
		})
	}
}

func status(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	// The client reports a failed write as a failed Bind.
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: code, Reason: reason, Message: string(reason),
	})
}

// FuzzTrim checks that a trimmed pod or node produces the same cache entry as the whole object.
func FuzzTrim(f *testing.F) {
	for _, obj := range []any{pod("web", "1", "GPU-a"), node(inventory)} {
		data, err := json.Marshal(obj)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"metadata":{"annotations":{"gpumem.dev/policy":"x"}},"spec":{"initContainers":[{"restartPolicy":"Always","resources":{"requests":{"gpumem.dev/gpu-mem":"1"}}}]}}`))
	f.Add([]byte(`{"spec":{"priority":-1},"status":{"nominatedNodeName":"node","phase":"Failed","startTime":"2026-01-01T00:00:00Z"}}`))
	n, now := names(f), time.Now()
	f.Fuzz(func(t *testing.T, data []byte) {
		var pod v1.Pod
		if json.Unmarshal(data, &pod) == nil {
			obj, err := Trim(n)(pod.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			small := obj.(*v1.Pod)
			if n.Holds(&pod) {
				want, wantErr := n.Holding(&pod)
				got, err := n.Holding(small)
				if diff := cmp.Diff(want, got); diff != "" || fmt.Sprint(wantErr) != fmt.Sprint(err) {
					t.Errorf("%s: %v, trimmed %v (-full +trimmed):\n%s", data, wantErr, err, diff)
				}
			}
			if n.Holds(&pod) != n.Holds(small) || api.Terminal(&pod) != api.Terminal(small) || fmt.Sprint(api.Nomination(&pod, placement.Request{}, now)) != fmt.Sprint(api.Nomination(small, placement.Request{}, now)) ||
				api.Priority(&pod) != api.Priority(small) || api.CPU(&pod) != api.CPU(small) || pod.Spec.NodeName != small.Spec.NodeName {
				t.Errorf("%s: trimmed to %v", data, small)
			}
		}
		var node v1.Node
		if json.Unmarshal(data, &node) != nil {
			return
		}
		for _, trim := range []toolscache.TransformFunc{Trim(n), TrimNode} {
			obj, err := trim(node.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			want, wantErr := n.InventoryOf(&node)
			got, err := n.InventoryOf(obj.(*v1.Node))
			if diff := cmp.Diff(want, got); diff != "" || fmt.Sprint(wantErr) != fmt.Sprint(err) {
				t.Errorf("%s: %v, trimmed %v (-full +trimmed):\n%s", data, wantErr, err, diff)
			}
			if len(want.Devices) == 0 {
				return
			}
			if diff := cmp.Diff(nodefilter.NodeFacts(n, &node, n.Offered(want.InShares())), nodefilter.NodeFacts(n, obj.(*v1.Node), n.Offered(want.InShares())), cmp.AllowUnexported(nearmiss.Gap{})); diff != "" {
				t.Errorf("%s: (-full +trimmed):\n%s", data, diff)
			}
		}
	})
}

// At the start, the cluster has a node and pods that cannot be read, and a pod on a deleted node. The
// controller becomes ready nevertheless, and all readable parts are in the cache.
func TestOneBadObjectDoesNotStopTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := node("{")
		broken.Name = "broken"
		unread, ghost, odd := pod("unread", "2", "GPU-a"), pod("ghost", "3", "GPU-a"), pod("odd", "4", "GPU-b")
		unread.Annotations["gpumem.dev/assignment"] = `{"v":1,"gpus":"all"}`
		ghost.Spec.NodeName = "gone"
		odd.Annotations["gpumem.dev/gpu-count"] = "two"
		client := fake.NewClientset(node(inventory), broken, pod("web", "1", "GPU-b"), unread, ghost, odd)
		books := cache.New()
		ctl, err := New(zaptest.NewLogger(t), client, names(t), books)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); ctl.Run(ctx) }()
		synctest.Wait()
		if missing := ctl.Missing(); missing != "" {
			t.Errorf("not ready: %s", missing)
		}
		if diff := cmp.Diff([]gpu.Units{0, 6}, requested(books)); diff != "" {
			t.Errorf("requested (-want +got):\n%s", diff)
		}
		if n, _ := books.Node("node"); len(n.Unattributed) != 1 {
			t.Errorf("%d pods are on no known GPU, want the one that cannot be read", len(n.Unattributed))
		}
		if n, ok := books.Node("broken"); !ok || len(n.Devices) != 0 {
			t.Errorf("the broken node is known: %t, with %d GPUs, want none", ok, len(n.Devices))
		}
		cancel()
		<-done
	})
}

// The statistics of requests count each pod once, also if the pod arrives as an update of an earlier pod of
// the same name.
func TestEachRequestIsLearnedOnce(t *testing.T) {
	books := cache.New()
	handler := (&Feeder{Log: zaptest.NewLogger(t), Names: names(t), Cache: books}).PodHandler()
	books.SetNode("node", gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: "GPU-a", Allocatable: 10, MemoryMiB: 10240}}})
	learned := func() bool { // prices change only when there are new requests
		before := books.Prices()
		books.Reprice()
		return books.Prices() != before
	}
	first := pod("web", "1", "GPU-a")
	first.Spec.NodeName = ""
	changed, other := first.DeepCopy(), first.DeepCopy()
	changed.Labels = map[string]string{"changed": "yes"}
	other.UID = "another"
	handler.OnAdd(first, false)
	if !learned() {
		t.Error("nothing is learned of a new pod")
	}
	handler.OnUpdate(first, changed)
	if learned() {
		t.Error("a pod that is changed is learned of twice")
	}
	handler.OnUpdate(changed, other)
	if !learned() {
		t.Error("nothing is learned of another pod of the same name")
	}
}
