package clitest

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

// CordonedOn returns the value of a node's annotation that lists the cordoned GPUs.
func CordonedOn(t *testing.T, client *fake.Clientset, node string) string {
	t.Helper()
	n, err := client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n.Annotations[kubetest.Names(t).Cordoned()]
}

// Evicting makes a fake client carry out evictions. The client appends each evicted pod, as NAMESPACE/NAME,
// to the returned list, which tests read after a command.
func Evicting(client *fake.Clientset) (evicted *[]string) {
	evicted = new([]string)
	client.Resources = []*metav1.APIResourceList{
		{GroupVersion: "policy/v1"},
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods/eviction", Kind: "Eviction", Group: "policy", Version: "v1"}}},
	}
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		eviction := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		*evicted = append(*evicted, eviction.Namespace+"/"+eviction.Name)
		return true, nil, client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), eviction.Namespace, eviction.Name)
	})
	return evicted
}
