package cluster

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// The API server says in JSON that a proxied request is forbidden, which the client does not
// read.
func TestMetricsThatMayNotBeRead(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"not for you","reason":"Forbidden","code":403}`)
	}))
	defer server.Close()
	r := &Reader{Client: kubernetes.NewForConfigOrDie(&restclient.Config{Host: server.URL})}
	plugin := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpumem-system", Name: "plugin-gpu-a"},
		Spec:       v1.PodSpec{NodeName: "gpu-a", Containers: []v1.Container{{Name: "p", Ports: []v1.ContainerPort{{Name: "probes", ContainerPort: 8012}}}}},
	}
	const want = "reading the metrics of device plugins takes the right to get pods/proxy in namespace gpumem-system"
	if _, err := r.metricsOf(t.Context(), plugin); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
