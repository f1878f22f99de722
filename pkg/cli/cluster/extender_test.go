package cluster

import (
	"net/http"
	"net/http/httptest"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Decided returns a Forbidden error if the API server refuses to forward ports, even though client-go
// drops the type of this error.
func TestRefusedPortForward(t *testing.T) {
	for status, forbidden := range map[int]bool{http.StatusForbidden: true, http.StatusInternalServerError: false} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `pods "s-0" is forbidden: User "u" cannot create resource "pods/portforward"`, status)
		}))
		defer server.Close()
		config := &rest.Config{Host: server.URL}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		extenders := make([]v1.Pod, 2)
		for i, name := range []string{"s-0", "s-1"} {
			extenders[i].ObjectMeta = metav1.ObjectMeta{Namespace: "gpumem-system", Name: name}
			extenders[i].Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
		}
		r := &Reader{Client: client, REST: config, System: "gpumem-system"}
		got, err := r.Decided(t.Context(), extenders, "ml", "waits", "uid")
		if got != nil || err == nil || apierrors.IsForbidden(err) != forbidden {
			t.Errorf("status %d: %v, error %v; want Forbidden: %t", status, got, err, forbidden)
		}
	}
}
