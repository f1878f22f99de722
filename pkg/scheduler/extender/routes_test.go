package extender

import (
	"bytes"
	"encoding/json"
	"math/rand" //nolint:depguard // what the fuzzer takes
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// Requests with arbitrary content are decoded as by encoding/json, with which kube-scheduler encodes them.
func TestReadReadsWhatKubeSchedulerWrites(t *testing.T) {
	const seeds = 50
	for seed := range int64(seeds) {
		fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(seed), serializer.NewCodecFactory(runtime.NewScheme()))
		var args extenderv1.ExtenderArgs
		fill.Fill(&args)
		body, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		var want extenderv1.ExtenderArgs
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		got, _, err := decodeRequest[extenderv1.ExtenderArgs](httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/filter", bytes.NewReader(body)))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Fatalf("seed %d (-encoding/json +ours):\n%s", seed, diff)
		}
	}
}

// kube-scheduler's client reads a response of any length up to the end of its JSON value, and reuses the
// connection for the next request.
func TestAnswersLeaveTheConnectionOpen(t *testing.T) {
	w := newWorld(t)
	names := make([]string, 5000)
	for i := range names {
		names[i] = "pair"
	}
	body, err := json.Marshal(extenderv1.ExtenderArgs{Pod: w.pod("asking", "3"), NodeNames: &names})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(w.Routes("v1"))
	var connections atomic.Int32
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	for range 10 {
		response, err := server.Client().Post(server.URL+"/filter", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var result extenderv1.ExtenderFilterResult
		if err := json.NewDecoder(response.Body).Decode(&result); err != nil || len(*result.NodeNames) != len(names) {
			t.Fatalf("got %v, %v", result, err)
		}
		if err := response.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := connections.Load(); got != 1 {
		t.Errorf("%d connections for 10 questions, want 1", got)
	}
}
