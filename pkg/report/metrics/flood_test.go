package metrics_test

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/metrics"
)

// fleetOf returns nodes with eight GPUs each.
func fleetOf(nodes int) []placement.Node {
	var out []placement.Node
	for i := range nodes {
		inv := gpu.Inventory{UnitMiB: 1024, CPU: 64_000}
		for j := range 8 {
			inv.Devices = append(inv.Devices, gpu.Device{
				UUID: gpu.UUID(fmt.Sprintf("GPU-%08d-0000-0000-0000-%012d", i, j)), Index: j, Model: "NVIDIA A100-SXM4-80GB", MemoryMiB: 81920, Allocatable: 79,
			})
		}
		out = append(out, placement.NewNode(fmt.Sprintf("node-%04d", i), inv, nil))
	}
	return out
}

// start serves probes and metrics of a fleet until the test ends. It returns the address.
func start(t *testing.T, nodes []placement.Node) string {
	t.Helper()
	registry := metrics.NewRegistry("dev")
	fleet := metrics.Fleet{
		Nodes: func() []placement.Node { return nodes }, Facts: func([]placement.Node) inspect.Facts { return inspect.Facts{} },
		Assumed: func(time.Time) []cache.Assumed { return nil }, Waiting: func() []*v1.Pod { return nil },
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- serve.Run(ctx, listener, serve.Probes("v1", metrics.Handler(registry, fleet.Series), func() {}))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

// get reads a whole response.
func get(ctx context.Context, client *http.Client, url string) (status int, size int64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, 0, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer answer.Body.Close()
	size, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, size, err
}

// Scrapes without a pause cost little even for a large fleet, and the process still answers the kubelet's
// probes.
func TestAFloodOfScrapes(t *testing.T) {
	const (
		scrapers  = 512
		mostBytes = 128 << 20 // heap, including the scrapers' part
		seconds   = 3
	)
	url := start(t, fleetOf(1000))
	plain := func() *http.Client {
		return &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: scrapers}}
	}
	status, whole, err := get(t.Context(), plain(), url+"/metrics")
	if err != nil || status != http.StatusOK || whole < 3_000_000 {
		t.Fatalf("one scrape: status %d, %d bytes, %v; want all of the fleet", status, whole, err)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	runtime.GC()
	before, most := heap(), uint64(0)

	ctx, cancel := context.WithTimeout(t.Context(), seconds*time.Second)
	defer cancel()
	var group sync.WaitGroup
	var served, refused, cut atomic.Int64
	client := plain()
	for range scrapers {
		group.Go(func() {
			for ctx.Err() == nil {
				switch status, size, err := get(ctx, client, url+"/metrics"); {
				case err == nil && status == http.StatusOK && size >= whole-10_000: // the size of Go's own metrics varies
					served.Add(1)
				case err == nil && status == http.StatusServiceUnavailable:
					refused.Add(1)
				case ctx.Err() == nil:
					cut.Add(1)
				}
			}
		})
	}
	// The kubelet opens a connection for each probe. In this test it shares the processors with the flood.
	kubelet := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	probes := 0
	for ctx.Err() == nil {
		for _, path := range []string{"/healthz", "/readyz"} {
			if status, _, err := get(t.Context(), kubelet, url+path); err != nil || status != http.StatusOK {
				t.Errorf("%s during the flood: status %d, %v", path, status, err)
			}
			probes++
		}
		most = max(most, heap())
	}
	group.Wait()
	t.Logf("%d scrapes served, %d refused, %d cut; %d probes; heap %d MiB before, %d MiB at most", served.Load(), refused.Load(), cut.Load(), probes, before>>20, most>>20)
	if most > before+mostBytes {
		t.Errorf("the heap grew from %d to %d MiB, want no more than %d MiB more", before>>20, most>>20, mostBytes>>20)
	}
	if served.Load() == 0 || cut.Load() > 0 {
		t.Errorf("%d scrapes were served whole and %d were cut, want some and none", served.Load(), cut.Load())
	}
}

// Of many concurrent scrapes, the handler serves sixteen at once. It serves or refuses the others a second
// later.
func TestScrapesWaitForTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := metrics.Handler(metrics.NewRegistry("dev"))
		began := time.Now()
		var mu sync.Mutex
		took := make(map[string]int) // number of scrapes by status and time
		for range 40 {
			go func() {
				recorder := httptest.NewRecorder()
				handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				mu.Lock()
				defer mu.Unlock()
				took[fmt.Sprint(recorder.Code, " after ", time.Since(began))]++
			}()
			synctest.Wait()
		}
		time.Sleep(10 * time.Second)
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		mu.Lock()
		defer mu.Unlock()
		took["at last"] = recorder.Code
		first, second, refused := took["200 after 0s"], took["200 after 1s"], took["503 after 1s"]
		if first != 16 || second > 16 || first+second+refused != 40 || took["at last"] != 200 {
			t.Errorf("answers: %v; want 16 at once, 16 at most a second later, and the rest refused by then", took)
		}
	})
}

// Prometheus accepts gzip, and curl by default does not.
func TestOneScrapeInTwoForms(t *testing.T) {
	url := start(t, fleetOf(2)) + "/metrics"
	bodies := make(map[string]string)
	for _, encoding := range []string{"gzip", "identity"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept-Encoding", encoding)
		answer, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if got := answer.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/plain; version=0.0.4") {
			t.Errorf("%s: Content-Type %q", encoding, got)
		}
		body := io.Reader(answer.Body)
		if answer.Header.Get("Content-Encoding") == "gzip" {
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		} else if encoding == "gzip" {
			t.Error("who accepts gzip is sent something else")
		}
		text, err := io.ReadAll(body)
		if err != nil || !strings.Contains(string(text), `gpumem_extender_gpu_capacity_bytes{gpu="7",`) {
			t.Errorf("%s: %v, %d bytes without the last GPU", encoding, err, len(text))
		}
		bodies[encoding] = string(text)
	}
	if bodies["gzip"] != bodies["identity"] {
		t.Error("two scrapes within a second differ")
	}
}
