package page

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/page/pagetest"
)

// world is a pagetest.World with a clock.
type world struct {
	*pagetest.World
	now time.Time
}

func newWorld() *world { return &world{World: pagetest.NewWorld(), now: time.Unix(1, 0)} }

func (w *world) handler() http.Handler {
	reads := map[string]http.Handler{"/other": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "read") })}
	return Handler(&Source{
		Nodes: w.Nodes, Facts: w.Facts, Missing: func() string { return "" },
		Used: func() map[gpu.UUID]int64 { return w.Used },
	}, reads, func() time.Time { w.now = w.now.Add(freshness); return w.now })
}

func ask(h http.Handler, method, path string, headers ...string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, "http://localhost:8013"+path, nil)
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			request.Host = headers[i+1]
		}
		request.Header.Set(headers[i], headers[i+1])
	}
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, request)
	return recorder
}

// fleetOf returns the page's fleet.
func fleetOf(t *testing.T, h http.Handler) (fleet Fleet) {
	t.Helper()
	zipped, err := gzip.NewReader(ask(h, "GET", "/fleet", "Accept-Encoding", "gzip").Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(zipped).Decode(&fleet); err != nil {
		t.Fatal(err)
	}
	return fleet
}

// linesOf returns the GPUs and pods of a fleet as lines.
func linesOf(fleet Fleet) (lines []string) {
	pods := func(of []inspect.Pod) (text string) {
		for _, p := range of {
			text += fmt.Sprintf("; %s/%s%s has %d MiB since %s", p.Namespace, p.Name, p.UID, p.Memory.MiB, p.Started.Format(time.TimeOnly))
		}
		return text
	}
	for _, n := range fleet.Nodes {
		lines = append(lines, fmt.Sprintf("%s: %q %q%s", n.Name, n.Closed, n.Taint, pods(n.Unattributed)))
		for _, g := range n.GPUs {
			used := "unknown"
			if mib, ok := fleet.UsedMiB[g.UUID]; ok {
				used = fmt.Sprint(mib)
			}
			lines = append(lines, fmt.Sprintf("%s/%d: %s %s, %d of %d MiB, %s used%s", n.Name, g.Index, g.UUID, g.Model, g.Requested.MiB, g.Capacity.MiB, used, pods(g.Pods)))
		}
	}
	return lines
}

func TestFleetIsWhatTheCacheSays(t *testing.T) {
	w := newWorld()
	w.Offer("a", "T4", 14, 14)
	w.Place("ml/train", "a", 1, 5)
	w.Wait("ml/huge", 100)
	w.Used = map[gpu.UUID]int64{"GPU-a-0": 12}
	got := fleetOf(t, w.handler())
	if diff := cmp.Diff([]string{
		`a: "" ""`, "a/0: GPU-a-0 T4, 0 of 14336 MiB, 12 used",
		"a/1: GPU-a-1 T4, 5120 of 14336 MiB, unknown used; ml/train has 5120 MiB since 12:00:00",
	}, linesOf(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]WaitingPod{
		{Namespace: "ml", Name: "huge", Count: 1, MemoryMiB: 100 << 10, Reason: "a: needs 100 GiB on one GPU; the largest that qualifies here has 14 GiB: ask for less"},
	}, got.Waiting); diff != "" {
		t.Errorf("pods that wait (-want +got):\n%s", diff)
	}
}

// The fleet has each node's reason for taking no new pods, and the taint that pods must tolerate.
func TestNodesThatTakeNoNewPods(t *testing.T) {
	w := newWorld()
	w.Offer("a", "T4", 14)
	w.Offer("b", "T4", 1)
	w.Wait("ml/small", 2)
	w.Known["a"] = inspect.NodeFacts{Refuses: &decide.Refusal{Message: inspect.NodeNotReady}}
	w.Known["b"] = inspect.NodeFacts{Taint: "team"}
	got := fleetOf(t, w.handler())
	if diff := cmp.Diff([]string{
		`a: "the node is NotReady" ""`, "a/0: GPU-a-0 T4, 0 of 14336 MiB, unknown used",
		`b: "" "team"`, "b/0: GPU-b-0 T4, 0 of 1024 MiB, unknown used",
	}, linesOf(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]WaitingPod{{Namespace: "ml", Name: "small", Count: 1, MemoryMiB: 2 << 10, Reason: "a: the node is NotReady"}}, got.Waiting); diff != "" {
		t.Errorf("pods that wait (-want +got):\n%s", diff)
	}
}

// The size of a share differs by GPU.
func TestSharesAreSentInMiB(t *testing.T) {
	w := newWorld()
	w.SetNode("a", gpu.Inventory{Devices: []gpu.Device{
		{UUID: kubetest.UUID("a", 0), Model: "T4", Allocatable: gpu.SharesPerDevice, ShareMiB: 1024, MemoryMiB: 10240, NUMANode: -1},
		{UUID: kubetest.UUID("a", 1), Index: 1, Model: "A100", Allocatable: gpu.SharesPerDevice, ShareMiB: 4096, MemoryMiB: 40960, NUMANode: -1},
	}})
	w.Place("ml/three", "a", 1, 3)
	if diff := cmp.Diff([]string{
		`a: "" ""`, "a/0: GPU-a-0 T4, 0 of 10240 MiB, unknown used",
		"a/1: GPU-a-1 A100, 12288 of 40960 MiB, unknown used; ml/three has 12288 MiB since 12:00:00",
	}, linesOf(fleetOf(t, w.handler()))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Waiting pods with the same controller, request and reason share a line, with the age of the oldest pod.
func TestPodsThatWaitAlikeAreOneLine(t *testing.T) {
	w := newWorld()
	w.Offer("a", "T4", 14)
	for i := range 40 {
		w.Wait(fmt.Sprintf("ml/burst-%02d", i), 15)
		pod := &w.Waiting[i]
		pod.Owner, pod.Created = "Job/burst", pagetest.Started.Add(time.Duration(40-i)*time.Minute)
	}
	w.Wait("ml/alone", 15)
	const reason = "a: needs 15 GiB on one GPU; the largest that qualifies here has 14 GiB: ask for less"
	want := []WaitingPod{
		{Namespace: "ml", Name: "alone", Count: 1, MemoryMiB: 15 << 10, Reason: reason},
		{Namespace: "ml", Name: "burst-00", Owner: "Job/burst", Count: 40, MemoryMiB: 15 << 10, Oldest: pagetest.Started.Add(time.Minute), Reason: reason},
	}
	if diff := cmp.Diff(want, fleetOf(t, w.handler()).Waiting); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The fleet includes pods on unknown GPUs, because they count in the sums of their namespaces.
func TestPodsOnNoKnownGPUAreSent(t *testing.T) {
	w := newWorld()
	w.Offer("a", "T4", 14)
	w.AddPod("a", placement.Holding{Pod: placement.PodRef{Namespace: "ml", Name: "new", UID: "new"}, Request: pagetest.Asks(3)})
	want := []string{`a: "" ""; ml/new has 3072 MiB since 00:00:00`, "a/0: GPU-a-0 T4, 0 of 14336 MiB, unknown used"}
	if diff := cmp.Diff(want, linesOf(fleetOf(t, w.handler()))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The server accepts requests from a proxy that sends the server's own address as Host, and rejects
// requests from a proxy that passes on the client's Host.
func TestThroughAProxy(t *testing.T) {
	page := httptest.NewServer(newWorld().handler())
	defer page.Close()
	upstream, err := url.Parse(page.URL)
	if err != nil {
		t.Fatal(err)
	}
	for passesHost, want := range map[bool]int{false: http.StatusOK, true: http.StatusForbidden} {
		proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)
			if passesHost {
				r.Out.Host = r.In.Host
			}
		}})
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, proxy.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = "gpus.example.com"
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		proxy.Close()
		if answer.StatusCode != want {
			t.Errorf("the proxy passes on the Host: %v: %d, want %d", passesHost, answer.StatusCode, want)
		}
	}
}

func TestWhatHasNotChangedIsNotSent(t *testing.T) {
	w := newWorld()
	w.Offer("a", "T4", 14)
	h := w.handler()
	tag := ask(h, "GET", "/fleet", "Accept-Encoding", "gzip").Header().Get("ETag")
	if answer := ask(h, "GET", "/fleet", "If-None-Match", tag); answer.Code != http.StatusNotModified || answer.Body.Len() > 0 {
		t.Errorf("%d with %d bytes", answer.Code, answer.Body.Len())
	}
	w.Place("ml/new", "a", 0, 1)
	if answer := ask(h, "GET", "/fleet", "If-None-Match", tag, "Accept-Encoding", "gzip"); answer.Code != http.StatusOK {
		t.Errorf("after a change: %d", answer.Code)
	}
}

func TestPageIsReadOnlyAndForThisMachine(t *testing.T) {
	h := newWorld().handler()
	for _, tc := range []struct {
		method, path, host string
		want               int
	}{
		{"GET", "/", "localhost:8013", 200},
		{"GET", "/page.js", "127.0.0.1:8013", 200},
		{"GET", "/page.css", "[::1]:8013", 200},
		{"HEAD", "/", "localhost", 200},
		{"GET", "/", "evil.example:8013", 403},
		{"GET", "/fleet", "10.0.0.1", 403},
		{"POST", "/fleet", "localhost", 405},
		{"GET", "/bind", "localhost", 404},
		{"GET", "/other", "localhost", 200},
		{"GET", "/other", "evil.example", 403},
		{"POST", "/other", "localhost", 405},
		{"GET", "/index.html", "localhost", 404},
		{"GET", "/fleet", "localhost", 406}, // without gzip
	} {
		answer := ask(h, tc.method, tc.path, "Host", tc.host)
		if answer.Code != tc.want {
			t.Errorf("%s %s of %s: %d, want %d", tc.method, tc.path, tc.host, answer.Code, tc.want)
		}
		if policy := answer.Header().Get("Content-Security-Policy"); tc.want < 400 && !strings.Contains(policy, "connect-src 'self'") {
			t.Errorf("%s: policy %q", tc.path, policy)
		}
	}
}

func TestWithoutAPageTheRestIsServed(t *testing.T) {
	h := Handler(nil, map[string]http.Handler{"/other": http.NotFoundHandler()}, time.Now)
	for _, path := range []string{"/", "/fleet", "/page.js"} {
		if answer := ask(h, "GET", path); answer.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, answer.Code)
		}
	}
}

// The files of the page name no other host.
func TestPageAsksNobodyElse(t *testing.T) {
	for _, path := range []string{"/", "/page.js", "/page.css"} {
		text := ask(newWorld().handler(), "GET", path).Body.String()
		text = strings.ReplaceAll(text, "http://www.w3.org/", "") // XML namespaces
		if strings.Contains(text, "http://") || strings.Contains(text, "https://") {
			t.Errorf("%s names another host", path)
		}
	}
}
