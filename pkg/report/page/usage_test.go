package page

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/report/boundedhttp"
)

// plugins contains fake device plugins and the pods that lead to them.
type plugins struct {
	pods   []v1.Pod
	err    error
	listed []string
}

func (p *plugins) PodsBy(_ context.Context, namespace, selector string) ([]v1.Pod, error) {
	p.listed = append(p.listed, namespace+" "+selector)
	return p.pods, p.err
}

// answers starts a plugin with the given response.
func (p *plugins) answers(t *testing.T, name string, status int, text string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	ip, port, err := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	p.pods = append(p.pods, v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Ports: []v1.ContainerPort{{Name: "probes", ContainerPort: int32(number)}}}}},
		Status:     v1.PodStatus{PodIP: ip},
	})
}

func used(uuid string, bytes int64) string {
	return fmt.Sprintf("# TYPE gpumem_device_plugin_gpu_memory_used_bytes gauge\ngpumem_device_plugin_gpu_memory_used_bytes{gpu=\"0\",uuid=%q,model=\"T4\"} %d\n", uuid, bytes)
}

func TestUsed(t *testing.T) {
	const gib = 1 << 30
	all := &plugins{}
	all.answers(t, "well", http.StatusOK, used("GPU-a", 3*gib)+"gpumem_device_plugin_gpu_memory_used_bytes{gpu=\"1\",uuid=\"GPU-b\",model=\"T4\"} 0\n")
	all.answers(t, "other", http.StatusOK, used("GPU-c", gib/2))
	all.answers(t, "busy", http.StatusServiceUnavailable, used("GPU-d", gib))
	all.answers(t, "broken", http.StatusOK, "no metrics at all {")
	all.pods = append(all.pods, v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "starting"}})
	now := time.Unix(1000, 0)
	r := &UsageReader{Log: zaptest.NewLogger(t), Pods: all, Namespace: "gpumem-system", Now: func() time.Time { return now }}
	want := map[gpu.UUID]int64{"GPU-a": 3 << 10, "GPU-b": 0, "GPU-c": 512}
	for range 2 { // the second call returns the cached result
		if diff := cmp.Diff(want, r.Used()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	now = now.Add(maxUsageAge)
	all.err = errors.New("the API server is away")
	if got := r.Used(); len(got) > 0 {
		t.Errorf("without plugins: %v", got)
	}
	if diff := cmp.Diff([]string{"gpumem-system " + boundedhttp.Plugins, "gpumem-system " + boundedhttp.Plugins}, all.listed); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
}
