package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/usage"
)

const patience = 10 * time.Second

var (
	gpu0 = gpu.Device{UUID: "GPU-aaaaaaaa", Index: 0, MemoryMiB: 15360, Allocatable: 14}
	gpu1 = gpu.Device{UUID: "GPU-bbbbbbbb", Index: 1, MemoryMiB: 15360, Allocatable: 14}
)

func inventory(devices ...gpu.Device) gpu.Inventory {
	return gpu.Inventory{UnitMiB: 1024, Devices: devices}
}

var names = kubetest.Names

// pod returns a pod that is bound to node n1 and requests some units.
func pod(name, uid string, units int64) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: "1"},
		Spec: v1.PodSpec{
			NodeName: "n1",
			Containers: []v1.Container{{
				Name: "main", Image: "secret.example/image", Env: []v1.EnvVar{{Name: "TOKEN", Value: "x"}},
				Resources: v1.ResourceRequirements{Limits: v1.ResourceList{
					"gpumem.dev/gpu-mem": *resource.NewQuantity(units, resource.DecimalSI),
					"cpu":                resource.MustParse("1"),
				}},
			}},
		},
		Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}}},
	}
}

// A plugin that ends waits only for pods whose containers are being created.
func TestWhichPodsAreStarting(t *testing.T) {
	waits := func(reason string) v1.ContainerStatus {
		return v1.ContainerStatus{Name: "main", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}}
	}
	admitted := &metav1.Time{Time: time.Unix(1, 0)}
	for name, tc := range map[string]struct {
		status v1.PodStatus
		want   bool
	}{
		"not admitted":    {v1.PodStatus{Phase: v1.PodPending}, false},
		"admitted":        {v1.PodStatus{Phase: v1.PodPending, StartTime: admitted}, true},
		"being made":      {v1.PodStatus{Phase: v1.PodPending, StartTime: admitted, ContainerStatuses: []v1.ContainerStatus{waits("ContainerCreating")}}, true},
		"after the inits": {v1.PodStatus{Phase: v1.PodPending, StartTime: admitted, ContainerStatuses: []v1.ContainerStatus{waits("PodInitializing")}}, true},
		"no image":        {v1.PodStatus{Phase: v1.PodPending, StartTime: admitted, ContainerStatuses: []v1.ContainerStatus{waits("ImagePullBackOff")}}, false},
		"no image for an init container": {v1.PodStatus{Phase: v1.PodPending, StartTime: admitted,
			InitContainerStatuses: []v1.ContainerStatus{waits("ErrImagePull")}, ContainerStatuses: []v1.ContainerStatus{waits("PodInitializing")}}, false},
		"runs": {v1.PodStatus{Phase: v1.PodRunning, StartTime: admitted}, false},
	} {
		p := NewPods(nil, names(t), "n1", zap.NewNop())
		one := pod("p", "uid-p", 3)
		one.Status = tc.status
		trimmed, err := p.trim(one)
		if err != nil {
			t.Fatal(err)
		}
		p.store(trimmed)
		if list, _, _ := p.Pods(); len(list) != 1 || list[0].Starting != tc.want {
			t.Errorf("%s: %+v, want that it starts: %v", name, list, tc.want)
		}
	}
}

// watching runs a view until the test ends.
func watching(t *testing.T, client *fake.Clientset) *Pods {
	t.Helper()
	p := NewPods(client, names(t), "n1", zap.NewNop())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	until(t, p, func(_ []allocation.Pod, complete bool) bool { return complete })
	return p
}

// until waits until the function want accepts the pods.
func until(t *testing.T, p *Pods, want func([]allocation.Pod, bool) bool) []allocation.Pod {
	t.Helper()
	deadline := time.After(patience)
	for {
		pods, complete, changed := p.Pods()
		if want(pods, complete) {
			return pods
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("pods are still %v", pods)
		}
	}
}

func uids(pods []allocation.Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Pod.UID)
	}
	return strings.Join(out, " ")
}

func TestPodsOfTheNode(t *testing.T) {
	elsewhere := pod("elsewhere", "u2", 1)
	elsewhere.Spec.NodeName = "n2"
	ended := pod("ended", "u3", 1)
	ended.Status.Phase = v1.PodSucceeded
	plain := pod("plain", "u4", 1)
	plain.Spec.Containers[0].Resources = v1.ResourceRequirements{}
	client := fake.NewClientset(pod("a", "u1", 3), elsewhere, ended, plain)
	p := watching(t, client)
	pods, _, _ := p.Pods()
	if got := uids(pods); got != "u1" {
		t.Fatalf("pods %q, want u1", got)
	}
	if got := pods[0].Request.Units(); got != 3 {
		t.Errorf("asks for %d units, want 3", got)
	}
	ctx := t.Context()
	if _, err := client.CoreV1().Pods("ns").Create(ctx, pod("b", "u5", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, p, func(pods []allocation.Pod, _ bool) bool { return uids(pods) == "u1 u5" })
	over := pod("a", "u1", 3)
	over.ResourceVersion = "2"
	over.Status.Phase = v1.PodFailed
	if _, err := client.CoreV1().Pods("ns").Update(ctx, over, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, p, func(pods []allocation.Pod, _ bool) bool { return uids(pods) == "u5" })
	if err := client.CoreV1().Pods("ns").Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, p, func(pods []allocation.Pod, _ bool) bool { return len(pods) == 0 })
}

// TestSecondNames verifies that second names of settings stay in the trimmed pod, and that a value computed by
// the kubelet is unknown.
func TestSecondNames(t *testing.T) {
	full := pod("a", "u1", 3)
	full.Spec.Containers[0].Env = append(full.Spec.Containers[0].Env,
		v1.EnvVar{Name: "XLA_CLIENT_MEM_FRACTION", ValueFrom: &v1.EnvVarSource{}}, v1.EnvVar{Name: "PYTORCH_CUDA_ALLOC_CONF", Value: "backend:native"})
	reference := pod("b", "u2", 3)
	reference.Spec.Containers[0].Env = []v1.EnvVar{{Name: "PYTORCH_CUDA_ALLOC_CONF", Value: "$(TOKEN)"}}
	pods, _, _ := watching(t, fake.NewClientset(full, reference, pod("c", "u3", 3))).Pods()
	var got []map[string]map[string]string
	for _, one := range pods {
		got = append(got, one.Seconds)
	}
	want := []map[string]map[string]string{
		{"main": {"XLA_CLIENT_MEM_FRACTION": "$()", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}}, {"main": {"PYTORCH_CUDA_ALLOC_CONF": "$()"}}, nil,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDisruptions verifies that Disruptions lists a pod that Kubernetes terminates, and signals the change.
func TestDisruptions(t *testing.T) {
	client := fake.NewClientset(pod("a", "u1", 3), pod("b", "u2", 3))
	p := watching(t, client)
	none, changed := p.Disruptions()
	for i, status := range []v1.ConditionStatus{v1.ConditionFalse, v1.ConditionTrue} {
		victim := pod("a", "u1", 3)
		victim.ResourceVersion = strconv.Itoa(i + 2)
		victim.Status.Conditions = append(victim.Status.Conditions, v1.PodCondition{Type: v1.DisruptionTarget, Status: status, Reason: v1.PodReasonPreemptionByScheduler})
		if _, err := client.CoreV1().Pods("ns").Update(t.Context(), victim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	<-changed
	got, _ := p.Disruptions()
	want := []usage.Disruption{{Pod: placement.PodRef{Namespace: "ns", Name: "a", UID: "u1"}, Reason: v1.PodReasonPreemptionByScheduler}}
	if diff := cmp.Diff(want, got); diff != "" || len(none) != 0 {
		t.Errorf("before: %v; then (-want +got):\n%s", none, diff)
	}
}

func TestPodsAreTrimmed(t *testing.T) {
	p := NewPods(fake.NewClientset(), names(t), "n1", zap.NewNop())
	full := pod("a", "u1", 3)
	full.Annotations = map[string]string{"gpumem.dev/policy": "spread", "example.com/note": "long"}
	full.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "main", ContainerID: "containerd://1", Image: "long"}}
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	obj, err := p.trim(full)
	if err != nil {
		t.Fatal(err)
	}
	got := obj.(*v1.Pod)
	want := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u1", ResourceVersion: "1", Annotations: map[string]string{"gpumem.dev/policy": "spread"}},
		Spec: v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{
			Name:      "main",
			Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"gpumem.dev/gpu-mem": *resource.NewQuantity(3, resource.DecimalSI)}},
		}}},
		Status: v1.PodStatus{
			Conditions:        []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}},
			ContainerStatuses: []v1.ContainerStatus{{Name: "main", ContainerID: "containerd://1"}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("trimmed (-want +got):\n%s", diff)
	}
	if full.Spec.Containers[0].Image == "" || len(full.Spec.Containers[0].Resources.Limits) != 2 {
		t.Error("the pod itself was changed")
	}
	if obj, err := p.trim("tombstone"); err != nil || obj != "tombstone" {
		t.Errorf("something else: %v, %v", obj, err)
	}
}

// The control groups of a static pod contain the kubelet's UID.
func TestAPodIsKnownByTheKubeletsUIDToo(t *testing.T) {
	const hash = "0123456789abcdef0123456789abcdef"
	for name, tc := range map[string]struct {
		mirrors, uid string
		units        int64
		want         bool
	}{
		"its UID":                         {"", "0f7a2c1e-3b4d-4e5f-8a9b-0c1d2e3f4a5b", 3, true},
		"another's":                       {"", "11111111-1111-1111-1111-111111111111", 3, false},
		"none":                            {"", "", 3, false},
		"that of the static pod":          {hash, hash, 3, true},
		"its UID, of a mirror":            {hash, "0f7a2c1e-3b4d-4e5f-8a9b-0c1d2e3f4a5b", 3, true},
		"a static pod without GPU memory": {hash, hash, 0, false},
		"a UID that it claims":            {"11111111-1111-1111-1111-111111111111", "11111111-1111-1111-1111-111111111111", 3, false},
		"a UID that it claims by halves":  {"11111111-1111-1111-1111-11111111", "11111111-1111-1111-1111-11111111", 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			mirror := pod("a", "0f7a2c1e-3b4d-4e5f-8a9b-0c1d2e3f4a5b", tc.units)
			if tc.mirrors != "" {
				mirror.Annotations = map[string]string{"kubernetes.io/config.mirror": tc.mirrors}
			}
			p := watching(t, fake.NewClientset(mirror))
			if got := p.HoldsMemory(tc.uid); got != tc.want {
				t.Errorf("holds %v, want %v", got, tc.want)
			}
		})
	}
}

func TestOldNewsIsDropped(t *testing.T) {
	p := NewPods(fake.NewClientset(), names(t), "n1", zap.NewNop())
	at := func(version, uid string, index string) *v1.Pod {
		o := pod("a", uid, 3)
		o.ResourceVersion = version
		o.Annotations = map[string]string{"gpumem.dev/assignment": `{"v":1,"unitMiB":1024,"enforcement":"advisory","gpus":[{"uuid":"` + index + `","index":0,"units":3}]}`}
		return o
	}
	device := func() string {
		pods, _, _ := p.Pods()
		return string(pods[0].Assignment.Devices()[0])
	}
	p.store(at("10", "u1", "GPU-new"))
	p.store(at("9", "u1", "GPU-old"))
	if device() != "GPU-new" {
		t.Error("older news of a pod replaced newer")
	}
	p.store(at("9", "u2", "GPU-other"))
	if device() != "GPU-other" {
		t.Error("a pod made again under the name was dropped")
	}
	p.forget(at("11", "u1", ""))
	if pods, _, _ := p.Pods(); len(pods) != 1 {
		t.Error("the end of the pod before it ended the pod made again")
	}
}

// TestAnUnreadablePodIsLoggedOnce expects another log line only after the reason changes.
func TestAnUnreadablePodIsLoggedOnce(t *testing.T) {
	core, logged := observer.New(zap.WarnLevel)
	p := NewPods(fake.NewClientset(), names(t), "n1", zap.New(core))
	for i, tc := range []struct {
		assignment string
		lines      int
	}{{"", 0}, {"{", 1}, {"{", 1}, {"[]", 2}, {"", 2}, {"{", 3}} {
		o := pod("a", "u1", 3)
		o.ResourceVersion = fmt.Sprint(i + 1)
		if tc.assignment != "" {
			o.Annotations = map[string]string{"gpumem.dev/assignment": tc.assignment}
		}
		if p.store(o); logged.Len() != tc.lines {
			t.Errorf("assignment %d, %q: %d lines, want %d", i, tc.assignment, logged.Len(), tc.lines)
		}
	}
}

// The watch has delivered some pods, and the list contains others. Watch events that arrive during the list call
// are newer than the list.
func TestRefresh(t *testing.T) {
	at := func(name, version string) *v1.Pod {
		o := pod(name, "uid-"+name, 3)
		o.ResourceVersion = version
		return o
	}
	client := fake.NewClientset()
	p := NewPods(client, names(t), "n1", zap.NewNop())
	client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if got := action.(clienttesting.ListAction).GetListRestrictions().Fields; !got.Matches(fields.Set{"spec.nodeName": "n1"}) || got.Matches(fields.Set{"spec.nodeName": "n2"}) {
			t.Errorf("pods %q are listed, want those of node n1", got)
		}
		p.store(at("later", "12"))
		p.remove(at("gone", "11"))
		list := &v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}}
		for _, o := range []*v1.Pod{at("stays", "7"), at("new", "8"), at("gone", "6")} {
			list.Items = append(list.Items, *o)
		}
		return true, list, nil
	})
	p.store(at("stays", "5"))
	p.store(at("ended", "5"))
	p.store(at("gone", "5"))
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	pods, _, _ := p.Pods()
	if got, want := uids(pods), "uid-later uid-new uid-stays"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no answer")
	})
	if err := p.Refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "list the pods of node n1") {
		t.Errorf("got %v, want an error that says what failed", err)
	}
}

// If the watch is broken from the creation of a pod to its deletion, it never reports the deletion.
func TestAPodThatOnlyAListHasShownIsListedAgain(t *testing.T) {
	made := pod("a", "u1", 3)
	made.ResourceVersion = "8"
	listed, version := []v1.Pod{*made}, "10"
	client := fake.NewClientset()
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: listed}, nil
	})
	p := NewPods(client, names(t), "n1", zap.NewNop())
	refresh := func(when string, want bool) {
		t.Helper()
		if err := p.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := p.HasUnwatched(); got != want {
			t.Errorf("%s: unwatched: %t, want %t", when, got, want)
		}
	}
	refresh("listed", true)
	refresh("listed twice", true)
	p.Handler().OnAdd(made, false)
	refresh("delivered by the watch", false)
	p.Handler().OnDelete(made)
	refresh("listed after the watch has reported its end", true)
	listed, version = nil, "11"
	refresh("gone", false)
	if pods, _, _ := p.Pods(); len(pods) > 0 {
		t.Errorf("%q is known, and gone", uids(pods))
	}
}

func TestCorrectCarriesTheUID(t *testing.T) {
	client := fake.NewClientset(pod("a", "u1", 3))
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		// The API server treats a UID in the patch as a precondition.
		var patch v1.Pod
		if err := json.Unmarshal(action.(clienttesting.PatchAction).GetPatch(), &patch); err != nil {
			return true, nil, err
		}
		if patch.UID != "u1" {
			return true, nil, apierrors.NewConflict(v1.Resource("pods"), "a", errors.New("the UID is another"))
		}
		return false, nil, nil
	})
	p := watching(t, client)
	inv := inventory(gpu0, gpu1)
	to := func(d gpu.Device) placement.Assignment {
		return placement.Assignment{Shares: []placement.Share{{Device: d.UUID, Units: 3}}}
	}
	if err := p.Correct(t.Context(), placement.PodRef{Namespace: "ns", Name: "a", UID: "u0"}, to(gpu1), inv); !apierrors.IsConflict(err) {
		t.Errorf("another pod: error %v, want a conflict", err)
	}
	if err := p.Correct(t.Context(), placement.PodRef{Namespace: "ns", Name: "a", UID: "u1"}, to(gpu1), inv); err != nil {
		t.Fatal(err)
	}
	pods, _, _ := p.Pods()
	want := to(gpu1)
	want.Enforcement, want.UnitMiB = gpu.EnforcementAdvisory, inv.UnitMiB // from the node
	if diff := cmp.Diff(want, pods[0].Assignment); diff != "" {
		t.Errorf("known at once (-want +got):\n%s", diff)
	}
	if pods[0].Index != "1" {
		t.Errorf("index %q is known at once, want 1", pods[0].Index)
	}
	got, err := client.CoreV1().Pods("ns").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Annotations["gpumem.dev/gpu-index"] != "1" {
		t.Errorf("annotations %v", got.Annotations)
	}
	if len(got.Labels) > 0 {
		t.Errorf("labels %v, which were not asked for", got.Labels)
	}
	if err := p.Correct(t.Context(), placement.PodRef{Namespace: "ns", Name: "a", UID: "u1"}, to(gpu.Device{UUID: "GPU-x"}), inv); err == nil {
		t.Error("a GPU that the node lacks was written")
	}
}

// A pod can end, and a new pod of the same name start, before the answer to a write arrives.
func TestAPodThatEndsWhileItIsWrittenIsGone(t *testing.T) {
	for name, next := range map[string]*v1.Pod{"gone": nil, "made again": pod("a", "u2", 3)} {
		client := fake.NewClientset(pod("a", "u1", 3))
		p := NewPods(client, names(t), "n1", zap.NewNop())
		p.store(pod("a", "u1", 3))
		want := ""
		client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			p.remove(pod("a", "u1", 3)) // the watch is faster
			if next != nil {
				p.store(next)
				want = "u2"
			}
			return false, nil, nil
		})
		to := placement.Assignment{Shares: []placement.Share{{Device: gpu1.UUID, Units: 3}}}
		if err := p.Correct(t.Context(), placement.PodRef{Namespace: "ns", Name: "a", UID: "u1"}, to, inventory(gpu0, gpu1)); err != nil {
			t.Fatal(err)
		}
		if pods, _, _ := p.Pods(); uids(pods) != want {
			t.Errorf("%s: the pods are %q, want %q", name, uids(pods), want)
		}
		if p.store(pod("b", "u1", 3)); p.removed != nil {
			t.Errorf("%s: pods that are gone are remembered for ever", name)
		}
	}
}

// A correction fixes the labels, and removes a label without a known value.
func TestCorrectLabels(t *testing.T) {
	made := pod("a", "u1", 3)
	made.Labels = map[string]string{"app": "web", "gpumem.dev/assigned-model": "Other", "gpumem.dev/assigned-percent": "99", "gpumem.dev/assigned-speed": "99"}
	client := fake.NewClientset(made)
	n := names(t)
	n.LabelPods = true
	device := gpu.Device{UUID: "GPU-x", Model: "Tesla T4", MemoryMiB: 15360, Allocatable: 12}
	to := placement.Assignment{Shares: []placement.Share{{Device: device.UUID, Units: 3}}}
	if err := NewPods(client, n, "n1", zap.NewNop()).Correct(t.Context(), placement.PodRef{Namespace: "ns", Name: "a", UID: "u1"}, to, inventory(device)); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().Pods("ns").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"app": "web", "gpumem.dev/assigned-model": "Tesla-T4", "gpumem.dev/assigned-percent": "25"}
	if diff := cmp.Diff(want, got.Labels); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// annotated waits until the node's annotation equals an inventory.
func annotated(t *testing.T, client *fake.Clientset, want gpu.Inventory) {
	t.Helper()
	value, err := api.EncodeInventory(want)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		watch, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err == nil && node.Annotations["gpumem.dev/inventory"] == value {
			watch.Stop()
			return
		}
		select {
		case <-watch.ResultChan():
		case <-ctx.Done():
			t.Fatalf("annotation is still %q", node.Annotations["gpumem.dev/inventory"])
		}
		watch.Stop()
	}
}

func TestNodeIsKeptAnnotated(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{"other": "kept"}}}
	client := fake.NewClientset(node.DeepCopy())
	var failures atomic.Int32
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if failures.Add(1) == 1 {
			return true, nil, errors.New("the API server is down")
		}
		return false, nil, nil
	})
	n := NewPublisher(client, names(t), "n1", zap.NewNop())
	offers := make(chan struct{})
	current := atomic.Pointer[gpu.Inventory]{}
	set := func(inv gpu.Inventory) { current.Store(&inv) }
	set(inventory(gpu0))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- n.Run(ctx, func() (gpu.Inventory, <-chan struct{}) { return *current.Load(), offers }, nothing)
	}()
	annotated(t, client, inventory(gpu0)) // although the first write failed
	set(inventory(gpu0, gpu1))
	offers <- struct{}{}
	annotated(t, client, inventory(gpu0, gpu1))
	if err := client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node.DeepCopy(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	annotated(t, client, inventory(gpu0, gpu1))
	got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || got.Annotations["other"] != "kept" {
		t.Errorf("another annotation is %q, %v", got.Annotations["other"], err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLookReadsTheLastInventory(t *testing.T) {
	inv := inventory(gpu0, failed(gpu1, "XID 79"))
	value, err := api.EncodeInventory(inv)
	if err != nil {
		t.Fatal(err)
	}
	node := func(name string, annotations map[string]string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	}
	for name, tc := range map[string]struct {
		nodes []runtime.Object
		fail  error
		want  gpu.Inventory
	}{
		"an inventory":              {[]runtime.Object{node("n1", map[string]string{"gpumem.dev/inventory": value})}, nil, inv},
		"none yet":                  {[]runtime.Object{node("n1", nil)}, nil, gpu.Inventory{}},
		"none that can be read":     {[]runtime.Object{node("n1", map[string]string{"gpumem.dev/inventory": "{}"})}, nil, gpu.Inventory{}},
		"that of another node":      {[]runtime.Object{node("n2", map[string]string{"gpumem.dev/inventory": value})}, nil, gpu.Inventory{}},
		"the API server is away":    {[]runtime.Object{node("n1", map[string]string{"gpumem.dev/inventory": value})}, errors.New("no answer"), gpu.Inventory{}},
		"the node is not there yet": {nil, nil, gpu.Inventory{}},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(tc.nodes...)
			client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return tc.fail != nil, nil, tc.fail
			})
			got, err := ReadSnapshot(t.Context(), client, names(t), "n1")
			if tc.fail != nil && err == nil {
				t.Error("an error is taken for an answer")
			}
			if diff := cmp.Diff(tc.want, got.Offered); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodeSaysWhatIsMissing(t *testing.T) {
	n := NewPublisher(fake.NewClientset(), names(t), "n1", zap.NewNop())
	if n.Missing() == "" {
		t.Error("nothing is missing before the first write")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_ = n.Run(ctx, func() (gpu.Inventory, <-chan struct{}) {
			if strings.Contains(n.Missing(), "is not there yet") {
				cancel()
			}
			return inventory(gpu0), nil
		}, nothing)
	}()
	<-asked
	if !strings.Contains(n.Missing(), "node n1 is not there yet") {
		t.Errorf("missing %q", n.Missing())
	}
}

func TestEvents(t *testing.T) {
	recorder := events.NewFakeRecorder(2)
	e := &Events{recorder: recorder, node: "n1"}
	e.Pod(placement.PodRef{Namespace: "ns", Name: "a", UID: "u1"}, event.Refused, "100% taken")
	e.Node(event.Healthy, strings.Repeat("é", maxNote))
	if got, want := <-recorder.Events, "Warning GPUMemoryRefused 100% taken"; got != want {
		t.Errorf("event %q, want %q", got, want)
	}
	if got := <-recorder.Events; len(got) > maxNote+len("Normal GPUHealthy ") {
		t.Errorf("a note of %d bytes", len(got))
	}
}

// A repeated event increases the count of its Event. A new note creates another Event, even with the same
// reason.
func TestAThousandPodsMakeNoStormOfEvents(t *testing.T) {
	client := fake.NewClientset()
	made := make(chan struct{}, 10000)
	var mu sync.Mutex
	names := make(map[string]string) // Events by note
	client.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		event := action.(clienttesting.CreateAction).GetObject().(*eventsv1.Event)
		mu.Lock()
		defer mu.Unlock()
		note := event.Regarding.Name + ": " + event.Note
		if name, ok := names[note]; ok && name != event.Name {
			t.Errorf("two Events say %q", note)
		} else if !ok {
			names[note] = event.Name
			made <- struct{}{}
		}
		return true, event, nil
	})
	client.PrependReactor("patch", "events", func(clienttesting.Action) (bool, runtime.Object, error) { return true, &eventsv1.Event{}, nil })
	e, err := NewEvents(t.Context(), client, "gpumem-device-plugin", "n1")
	if err != nil {
		t.Fatal(err)
	}
	next := func() {
		t.Helper()
		select {
		case <-made:
		case <-time.After(patience):
			t.Fatal("no more Events")
		}
	}
	e.Node(event.Unhealthy, "GPU 0: lost")
	e.Node(event.Unhealthy, "GPU 0: lost")
	e.Node(event.Unhealthy, "GPU 0: XID 79")
	next()
	next()
	for i := range 1000 {
		for range 3 {
			e.Pod(placement.PodRef{Namespace: "ns", Name: fmt.Sprint("p", i), UID: fmt.Sprint("u", i)}, event.Refused, "no room")
		}
		next()
	}
	mu.Lock()
	defer mu.Unlock()
	if len(names) != 1002 {
		t.Errorf("%d Events, want one for each of 1,000 pods and 2 of the node", len(names))
	}
}
