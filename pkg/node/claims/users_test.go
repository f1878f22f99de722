package claims

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/nodeapi"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
	"github.com/gpumem/gpumem/pkg/node/usage"
)

// userOf returns a pod whose containers use claims by their names in the pod.
func userOf(name string, claims []v1.PodResourceClaim, containers map[string]string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("uid-of-" + name)}, Spec: v1.PodSpec{NodeName: node, ResourceClaims: claims}}
	for container, claim := range containers {
		c := v1.Container{Name: container}
		if claim != "" {
			c.Resources.Claims = []v1.ResourceClaim{{Name: claim}}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, v1.ContainerStatus{Name: container, ContainerID: "containerd://" + name + "-" + container})
	}
	return pod
}

// listed returns a complete view of the node's pods that reference claims.
func listed(t *testing.T, pods ...*v1.Pod) *nodeapi.Pods {
	t.Helper()
	client := fake.NewClientset()
	for _, pod := range pods {
		if _, err := client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	names, err := api.NewNames(domain)
	if err != nil {
		t.Fatal(err)
	}
	watched := nodeapi.NewPods(client, names, node, zap.NewNop())
	watched.SelectClaims()
	go func() { _ = watched.Run(t.Context()) }()
	for watched.Missing() != "" {
		_, _, changed := watched.Pods()
		if watched.Missing() != "" {
			<-changed
		}
	}
	return watched
}

func TestWhoUsesClaims(t *testing.T) {
	own := userOf("own", []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("five")}}, map[string]string{"main": "gpu", "aside": ""})
	own.Spec.InitContainers = []v1.Container{{Name: "load", Resources: v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "gpu"}}}}}
	own.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: new("made")}}
	named := []v1.PodResourceClaim{{Name: "both", ResourceClaimName: new("named")}}
	unmade := userOf("unmade", []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("five")}}, map[string]string{"main": "gpu"})
	pods := listed(t, own, userOf("a", named, map[string]string{"main": "both"}), userOf("b", named, map[string]string{"main": "both"}), unmade,
		userOf("other", []v1.PodResourceClaim{{Name: "x", ResourceClaimName: new("not-ours")}}, map[string]string{"main": "x"}), userOf("none", nil, map[string]string{"main": ""}))
	r := newRig(t, plugintest.TwoGPUs(), newMemory())
	unseen := allocated("unseen", result(gpuA, 1, 0))
	unseen.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "new", UID: "uid-of-new"}}
	for _, claim := range []*resourceapi.ResourceClaim{allocated("made", result(gpuA, 3, 20)), allocated("named", result(gpuA, 2, 0), result(gpuB, 2, 0)), unseen} {
		if got := r.one(t, claim); got.Err != nil {
			t.Fatal(got.Err)
		}
	}
	unlisted := NewUsers(nodeapi.NewPods(nil, api.Names{}, node, zap.NewNop()), r.Driver)
	if grants, err := unlisted.Grants(t.Context()); err == nil {
		t.Errorf("before the pods are listed: %v", grants)
	}
	u := NewUsers(pods, r.Driver)
	grants, err := u.Grants(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	grant := func(pod, container string, gpuA bool, gib uint64) usage.Grant {
		g := usage.Grant{Namespace: "ml", Name: pod, Container: container, Device: plugintest.GPUB, Bytes: gib << 30}
		if gpuA {
			g.Device = plugintest.GPUA
		}
		return g
	}
	want := []usage.Grant{
		grant("a", "main", true, 2), grant("a", "main", false, 2), grant("b", "main", true, 2), grant("b", "main", false, 2),
		grant("own", "load", true, 3), grant("own", "main", true, 3),
	}
	if diff := cmp.Diff(want, grants, cmpopts.SortSlices(func(a, b usage.Grant) bool {
		return a.Name+a.Container+string(a.Device) < b.Name+b.Container+string(b.Device)
	})); diff != "" {
		t.Error(diff)
	}
	for id, want := range map[string]string{"own-main": "own main", "own-aside": "own aside", "b-main": "b main", "other-main": "", "none-main": "", "unmade-main": "", "": ""} {
		got := ""
		if pod, name, ok := u.Container(id); ok {
			got = pod.Name + " " + name
			if want := (placement.PodRef{Namespace: "ml", Name: pod.Name, UID: "uid-of-" + pod.Name}); pod != want {
				t.Errorf("container %s is of %+v, want %+v", id, pod, want)
			}
		}
		if got != want {
			t.Errorf("container %q is of %q, want %q", id, got, want)
		}
	}
	for uid, want := range map[string]bool{"uid-of-own": true, "uid-of-a": true, "uid-of-b": true, "uid-of-new": true, "uid-of-unmade": false, "uid-of-other": false, "uid-of-none": false} {
		if got := u.HoldsMemory(uid); got != want {
			t.Errorf("holds(%s) %t, want %t", uid, got, want)
		}
	}
	if err := r.undo(t, "uid-named"); err != nil {
		t.Fatal(err)
	}
	if grants, _ := u.Grants(t.Context()); len(grants) != 2 || u.HoldsMemory("uid-of-b") {
		t.Errorf("after a claim was given back: %v", grants)
	}
}
