package nodeapi

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

func TestLookSeesTheNodeAndWhoHoldsItsResource(t *testing.T) {
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name string, limits v1.ResourceList) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}, Spec: v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Limits: limits}}}}}
	}
	client := fake.NewClientset(pod("holds", v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("3")}),
		pod("shares", v1.ResourceList{"gpumem.dev/gpu-share": resource.MustParse("3")}), pod("plain", nil))
	if _, err := ReadSnapshot(t.Context(), client, names, "n1"); err == nil {
		t.Error("a node that is not there is seen")
	}
	if err := client.Tracker().Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", Labels: map[string]string{names.API(): api.ByClaims}}}); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSnapshot(t.Context(), client, names, "n1")
	want := Snapshot{UID: "u1", Labels: map[string]string{"gpumem.dev/api": "claims"}, Holders: []string{"ml/holds"}, Sharers: []string{"ml/shares"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
	if got, err := ReadSnapshot(t.Context(), client, names, "n1"); err == nil {
		t.Errorf("pods that were not listed are taken for none: %+v", got)
	}
}

// TestLookSeesTheKindOfPods covers an admitted pod, and pods with claims in the annotation.
func TestLookSeesTheKindOfPods(t *testing.T) {
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	inv := inventory(gpu0)
	share := []gpu.Share{{Device: gpu0.UUID, Units: 2}}
	inv.Allocated = []gpu.PodAllocation{
		{UID: "claims", Namespace: "ml", Name: "claims", Shares: share},
		{UID: "ended", Namespace: "ml", Name: "ended", Shares: share},
		{UID: "memory", Shares: share},
	}
	value, err := api.EncodeInventory(inv)
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name types.UID, asks bool) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: string(name), UID: name}, Spec: v1.PodSpec{NodeName: "n1", Containers: []v1.Container{{Name: "main"}}}}
		if asks {
			p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse("3")}
		}
		return p
	}
	admitted := pod("memory", true)
	admitted.Status.StartTime = &metav1.Time{}
	plain := pod("plain", false)
	plain.Status.StartTime = &metav1.Time{}
	for name, tc := range map[string]struct {
		pods     []runtime.Object
		admitted bool
		claimers []string
	}{
		"a pod that is not admitted": {[]runtime.Object{pod("memory", true), plain}, false, nil},
		"a pod that is admitted":     {[]runtime.Object{admitted}, true, nil},
		"a pod with claims":          {[]runtime.Object{pod("claims", false), plain}, false, []string{"ml/claims"}},
	} {
		client := fake.NewClientset(append(tc.pods, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{names.Inventory(): value}}})...)
		got, err := ReadSnapshot(t.Context(), client, names, "n1")
		if err != nil || got.Admitted != tc.admitted || !slices.Equal(got.Claimers, tc.claimers) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
