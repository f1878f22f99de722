package cluster

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/gpumem/gpumem/pkg/report/printers"
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

func TestTimeOfAGPUIsASum(t *testing.T) {
	const used, sm = containerUsed, containerSM
	series := func(name, pod, container, uuid, value string) string {
		return fmt.Sprintf("%s{namespace=\"ml\",pod=%q,container=%q,uuid=%q} %s\n", name, pod, container, uuid, value)
	}
	text := "# TYPE " + used + " gauge\n" +
		series(used, "one", "main", "GPU-0", "1") + series(used, "idle", "main", "GPU-0", "1") +
		series(used, "two", "main", "GPU-0", "1") + series(used, "two", "main", "GPU-1", "1") +
		series(used, "partly", "main", "GPU-0", "1") + series(used, "partly", "other", "GPU-0", "1") +
		series(used, "unknown", "main", "GPU-0", "1") +
		"# TYPE " + sm + " gauge\n" +
		series(sm, "one", "main", "GPU-0", "0.29") + series(sm, "idle", "main", "GPU-0", "0") +
		series(sm, "two", "main", "GPU-0", "0.9") + series(sm, "two", "main", "GPU-1", "0.3") +
		series(sm, "partly", "other", "GPU-0", "0.5") + series(sm, "uses-nothing", "main", "GPU-0", "NaN")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	u := Usage{GPUs: make(map[printers.Used]printers.Usage), Pods: make(map[printers.Used]printers.Usage)}
	u.add("gpu-a", families)
	for name, want := range map[string]*int{"one": new(29), "idle": new(0), "two": new(120), "partly": nil, "unknown": nil, "uses-nothing": nil} {
		if diff := cmp.Diff(want, u.Pods[printers.Used{Node: "gpu-a", Name: "ml/" + name}].SM); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
