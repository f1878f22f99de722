package extender

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// newGPUShareWorld is newWorld with gpushare's names.
func newGPUShareWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	names, err := api.NewNames("aliyun.com")
	if err != nil {
		t.Fatal(err)
	}
	w.Names = names
	return w
}

func (w *world) call(method, path, body string) (int, string) {
	recorder := httptest.NewRecorder()
	w.Routes("v1").ServeHTTP(recorder, httptest.NewRequest(method, path, strings.NewReader(body)))
	return recorder.Code, strings.TrimSpace(recorder.Body.String())
}

func TestBindWritesGPUSharesAnnotationsToo(t *testing.T) {
	w := newGPUShareWorld(t)
	if refusal := w.bind(w.pod("a", "3"), "pair"); refusal != "" {
		t.Fatal(refusal)
	}
	want := map[string]string{
		"aliyun.com/assignment":          `{"v":1,"unitMiB":1024,"enforcement":"advisory","gpus":[{"uuid":"GPU-aaaa","index":0,"units":3}]}`,
		"aliyun.com/gpu-index":           "0",
		"ALIYUN_COM_GPU_MEM_IDX":         "0",
		"ALIYUN_COM_GPU_MEM_POD":         "3",
		"ALIYUN_COM_GPU_MEM_DEV":         "16",
		"ALIYUN_COM_GPU_MEM_ASSIGNED":    "false",
		"ALIYUN_COM_GPU_MEM_ASSUME_TIME": fmt.Sprint(w.now.UnixNano()),
	}
	if diff := cmp.Diff(want, w.cluster.bindings[0].Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

func TestGPUSharesRoutesAreOurs(t *testing.T) {
	w := newGPUShareWorld(t)
	w.pod("a", "3")
	for _, step := range []struct{ method, path, body, want string }{
		{http.MethodGet, "/version", "", `"v1"`},
		{http.MethodPost, "/filter", `{"Pod":{"metadata":{"name":"a","namespace":"team","uid":"uid-a"},"spec":{"containers":[{"resources":{"limits":{"aliyun.com/gpu-mem":"20"}}}]}},"NodeNames":["pair","big"]}`,
			`"NodeNames":["big"]`},
		{http.MethodPost, "/bind", `{"PodName":"a","PodNamespace":"team","PodUID":"uid-a","Node":"pair"}`, `{"Error":""}`},
		{http.MethodGet, "/inspect/pair", "",
			`{"nodes":[{"name":"pair","totalGPU":32,"usedGPU":3,"devs":[` +
				`{"id":0,"totalGPU":16,"usedGPU":3,"pods":[{"name":"a","namespace":"team","usedGPU":3}]},` +
				`{"id":1,"totalGPU":16,"usedGPU":0,"pods":[]}]}]}`},
		{http.MethodGet, "/inspect", "", `{"name":"big","totalGPU":80,"usedGPU":0,`},
		{http.MethodGet, "/inspect/nowhere", "", `{"nodes":[],"error":"node \"nowhere\" is not known"}`},
	} {
		status, body := w.call(step.method, "/gpushare-scheduler"+step.path, step.body)
		if status != http.StatusOK || !strings.Contains(body, step.want) {
			t.Errorf("%s %s: %d %s, want %s", step.method, step.path, status, body, step.want)
		}
	}
	if status, body := w.call(http.MethodGet, "/gpushare-scheduler/inspect", ""); strings.Contains(body, "plain") {
		t.Errorf("a node without GPUs is in the answer: %d %s", status, body)
	}
	other := newWorld(t)
	if status, _ := other.call(http.MethodGet, "/gpushare-scheduler/inspect", ""); status != http.StatusNotFound {
		t.Errorf("under other names: %d, want 404", status)
	}
}

// FuzzGPUShareRoutes asks under gpushare's names: each request is answered, and
// what pods hold does not change but by a bind.
func FuzzGPUShareRoutes(f *testing.F) {
	f.Add("GET", "/inspect/pair", "")
	f.Add("GET", "/inspect", "")
	f.Add("GET", "/inspect/%2e%2e/x", "")
	f.Add("POST", "/filter", `{"Pod":{"spec":{"containers":[{"resources":{"limits":{"aliyun.com/gpu-mem":"3"}}}]}},"NodeNames":["pair"]}`)
	f.Add("POST", "/bind", `{"PodName":"pod","PodNamespace":"team","PodUID":"uid-pod","Node":"pair"}`)
	f.Fuzz(func(t *testing.T, method, path, body string) {
		target, err := url.Parse("http://extender" + gpusharePrefix + "/" + strings.TrimPrefix(path, "/"))
		if err != nil {
			return // no client sends it
		}
		w := newGPUShareWorld(t)
		w.pod("pod", "3")
		before := w.Cache.Nodes()
		recorder := httptest.NewRecorder()
		w.Routes("v1").ServeHTTP(recorder, &http.Request{
			Method: method, URL: target, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
		})
		if recorder.Code == http.StatusInternalServerError {
			t.Errorf("%s %q %q: 500", method, path, body)
		}
		if diff := cmp.Diff(before, w.Cache.Nodes()); diff != "" && len(w.cluster.bindings) == 0 {
			t.Errorf("%s %q %q changed the cache (-before +after):\n%s", method, path, body, diff)
		}
	})
}
