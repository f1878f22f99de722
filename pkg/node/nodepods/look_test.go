package nodepods

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

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
	if _, err := Look(t.Context(), client, names, "n1"); err == nil {
		t.Error("a node that is not there is seen")
	}
	if err := client.Tracker().Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", Labels: map[string]string{names.API(): api.ByClaims}}}); err != nil {
		t.Fatal(err)
	}
	got, err := Look(t.Context(), client, names, "n1")
	want := Seen{UID: "u1", Labels: map[string]string{"gpumem.dev/api": "claims"}, Holders: []string{"ml/holds"}, Sharers: []string{"ml/shares"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
	if got, err := Look(t.Context(), client, names, "n1"); err == nil {
		t.Errorf("pods that were not listed are taken for none: %+v", got)
	}
}
