package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/cli/clitest"
	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/printers"
)

// The API server reports a forbidden proxy request in JSON, which client-go does not decode.
func TestMetricsThatMayNotBeRead(t *testing.T) {
	const namespace = "/namespaces/gpumem-system/"
	lists := map[string]any{
		"/apis/apps/v1" + namespace + "daemonsets": appsv1.DaemonSetList{Items: []appsv1.DaemonSet{*clitest.PluginSet()}},
		"/api/v1" + namespace + "pods":             v1.PodList{Items: []v1.Pod{*clitest.PluginPod("gpu-a")}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if list, ok := lists[req.URL.Path]; ok {
			_ = json.NewEncoder(w).Encode(list)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"not for you","reason":"Forbidden","code":403}`)
	}))
	defer server.Close()
	r := &cluster.Reader{Client: kubernetes.NewForConfigOrDie(&restclient.Config{Host: server.URL}), Names: kubetest.Names(t), System: "gpumem-system"}
	want := []inspect.Problem{{Object: "usage on gpu-a", Message: "reading the metrics of device plugins requires the right to get pods/proxy in namespace gpumem-system"}}
	if diff := cmp.Diff(want, r.Usage(t.Context()).Problems); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTimeOfAGPUIsASum(t *testing.T) {
	const used, sm = "gpumem_device_plugin_container_memory_used_bytes", "gpumem_device_plugin_container_sm_utilization_ratio"
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
	client := fake.NewClientset(clitest.PluginSet(), clitest.PluginPod("gpu-a"))
	client.AddProxyReactor("pods", func(clienttesting.Action) (bool, restclient.ResponseWrapper, error) {
		return true, clitest.Answer{Text: text}, nil
	})
	u := (&cluster.Reader{Client: client, Names: kubetest.Names(t), System: "gpumem-system"}).Usage(t.Context())
	if len(u.Problems) > 0 {
		t.Fatal(u.Problems)
	}
	for name, want := range map[string]*int{"one": new(29), "idle": new(0), "two": new(120), "partly": nil, "unknown": nil, "uses-nothing": nil} {
		if diff := cmp.Diff(want, u.Pods[printers.UsageKey{Node: "gpu-a", Name: "ml/" + name}].SM); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
