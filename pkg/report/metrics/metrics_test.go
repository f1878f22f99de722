package metrics

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/usage"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

var _ grants.Metrics = (*DevicePlugin)(nil)

// newRegistry returns a registry that also checks Prometheus' rules: names, help texts, and no duplicate
// values.
func newRegistry(t *testing.T) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	t.Cleanup(func() {
		problems, err := testutil.GatherAndLint(registry)
		if err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
	})
	return registry
}

// with returns the metrics of a registry and of series, as a scrape reads them.
func with(t *testing.T, registry *prometheus.Registry, series Series) prometheus.Gatherer {
	t.Helper()
	all := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		recorder := httptest.NewRecorder()
		Handler(registry, series).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(recorder.Body)
		for _, name := range slices.Sorted(maps.Keys(families)) {
			for _, m := range families[name].Metric {
				if !slices.IsSortedFunc(m.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) }) {
					t.Errorf("the labels of %s are not in order: %v", name, m.Label)
				}
			}
		}
		return slices.Collect(maps.Values(families)), err
	})
	if problems, err := testutil.GatherAndLint(all); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	return prometheus.Gatherers{all} // in order
}

// want compares the metrics with these names, or all metrics without names, with a text.
func want(t *testing.T, registry prometheus.Gatherer, names []string, text string) {
	t.Helper()
	if err := testutil.GatherAndCompare(registry, strings.NewReader(text), names...); err != nil {
		t.Error(err)
	}
}

// series returns the number of series of a metric.
func series(t *testing.T, registry prometheus.Gatherer, name string) int {
	t.Helper()
	n, err := testutil.GatherAndCount(registry, name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestExtender(t *testing.T) {
	registry := newRegistry(t)
	m := NewExtender(registry)
	m.Compared(map[string]int{"pod": 2, "node": 1})
	m.Compared(map[string]int{"pod": 1})
	m.Answered("filter", 3*time.Millisecond)
	m.Decided(history.Decision{Verb: "filter", Result: "unfit", Reason: "Fragmented"})
	m.Decided(history.Decision{Verb: "filter", Result: "fits", Sampled: true})
	if got := testutil.ToFloat64(m.sampled); got != 1 {
		t.Errorf("%g of two questions left out nodes, want 1", got)
	}
	if got := series(t, registry, "gpumem_extender_decisions_total"); got != 4+2*(4+int(placement.Fragmented)) {
		t.Errorf("%d series of decisions: each that there can be is to be there from the start, and no other", got)
	}
	want(t, registry, []string{"gpumem_extender_cache_checks_total", "gpumem_extender_cache_drift_objects", "gpumem_extender_cache_healed_objects_total"}, `
# HELP gpumem_extender_cache_checks_total Comparisons of the cache with the API server.
# TYPE gpumem_extender_cache_checks_total counter
gpumem_extender_cache_checks_total 2
# HELP gpumem_extender_cache_drift_objects Objects of the cache that differed from the API server at the last check, by kind (pod or node).
# TYPE gpumem_extender_cache_drift_objects gauge
gpumem_extender_cache_drift_objects{kind="node"} 0
gpumem_extender_cache_drift_objects{kind="pod"} 1
# HELP gpumem_extender_cache_healed_objects_total Objects of the cache that checks have corrected, by kind (pod or node).
# TYPE gpumem_extender_cache_healed_objects_total counter
gpumem_extender_cache_healed_objects_total{kind="node"} 1
gpumem_extender_cache_healed_objects_total{kind="pod"} 3
`)
}

func TestDevicePlugin(t *testing.T) {
	registry := newRegistry(t)
	m := NewDevicePlugin(registry)
	m.Drifted(2)
	m.Corrected(grants.ReasonHeld)
	m.Corrected(grants.ReasonPlanned)
	m.Corrected(grants.ReasonHeld)
	m.Answered("Allocate", time.Millisecond, errors.New("refused"))
	m.Answered("Allocate", time.Millisecond, nil)
	want(t, registry, []string{"gpumem_device_plugin_assignment_corrections_total", "gpumem_device_plugin_assignment_drift_pods", "gpumem_device_plugin_request_errors_total"}, `
# HELP gpumem_device_plugin_assignment_corrections_total Assignment annotations written, by reason: placed (the annotation was missing or changed by somebody else), held (the kubelet allocated other GPUs), planned (the kubelet allocated the pod's GPUs to another pod).
# TYPE gpumem_device_plugin_assignment_corrections_total counter
gpumem_device_plugin_assignment_corrections_total{reason="held"} 2
gpumem_device_plugin_assignment_corrections_total{reason="placed"} 0
gpumem_device_plugin_assignment_corrections_total{reason="planned"} 1
# HELP gpumem_device_plugin_assignment_drift_pods Pods of the node whose assignment annotation differed from the kubelet's allocation at the last check.
# TYPE gpumem_device_plugin_assignment_drift_pods gauge
gpumem_device_plugin_assignment_drift_pods 2
# HELP gpumem_device_plugin_request_errors_total Calls of the kubelet that returned an error, by call. An error of GetPreferredAllocation or Allocate fails the pod.
# TYPE gpumem_device_plugin_request_errors_total counter
gpumem_device_plugin_request_errors_total{rpc="Allocate"} 1
gpumem_device_plugin_request_errors_total{rpc="GetPreferredAllocation"} 0
gpumem_device_plugin_request_errors_total{rpc="PreStartContainer"} 0
`)
}

func TestHandler(t *testing.T) {
	registry := NewRegistry("v1.2.3")
	NewExtender(registry)
	answer := httptest.NewRecorder()
	Handler(registry).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{"\ngpumem_build_info{goversion=\"" + runtime.Version() + "\",version=\"v1.2.3\"} 1\n", "\ngpumem_extender_cache_checks_total 0\n", "\ngo_goroutines ", "\nprocess_cpu_seconds_total "} {
		if !strings.Contains(answer.Body.String(), line) {
			t.Errorf("no %q in:\n%s", line, answer.Body)
		}
	}
}

// With series for pods, a pod on two GPUs has one series with their sum. A recreated pod and its
// terminating predecessor share a series. A pod without GPU memory has no series.
func TestPodsAreToldWhereThatIsOn(t *testing.T) {
	books := cache.New()
	books.SetNode("a", gpu.Inventory{UnitMiB: 512, Devices: []gpu.Device{{UUID: "GPU-1", Allocatable: 20}, {UUID: "GPU-2", Index: 1, Allocatable: 20}}})
	add := func(name, uid string, units gpu.Units, on ...gpu.UUID) {
		var shares []placement.Share
		for _, id := range on {
			shares = append(shares, placement.Share{Device: id, Units: units / gpu.Units(len(on))})
		}
		books.AddPod("a", placement.Holding{
			Pod:        placement.PodRef{Namespace: "ml", Name: name, UID: uid},
			Request:    placement.Request{Count: len(on), CPU: 1, Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: units})},
			Assignment: placement.Assignment{Shares: shares},
		})
	}
	add("two", "1", 8, "GPU-1", "GPU-2")
	add("again-0", "2", 2, "GPU-1")
	add("again-0", "3", 2, "GPU-2")
	add("unknown", "4", 1) // on no known GPU
	add("without", "5", 0)
	for on, text := range map[bool]string{false: "", true: `
# HELP gpumem_extender_pod_allocated_bytes Memory that is allocated to a pod, on all GPUs of its node.
# TYPE gpumem_extender_pod_allocated_bytes gauge
gpumem_extender_pod_allocated_bytes{namespace="ml",node="a",pod="again-0"} 2.147483648e+09
gpumem_extender_pod_allocated_bytes{namespace="ml",node="a",pod="two"} 4.294967296e+09
gpumem_extender_pod_allocated_bytes{namespace="ml",node="a",pod="unknown"} 5.36870912e+08
`} {
		registry := newRegistry(t)
		parts := Fleet{
			Nodes: books.Nodes, Facts: noFacts, Assumed: books.AssumedBefore,
			Waiting: func() []*v1.Pod { return nil }, Pods: on,
		}.Series
		want(t, with(t, registry, parts), []string{"gpumem_extender_pod_allocated_bytes"}, text)
	}
}

// Metrics of pods and of nodes convert a share to bytes by the size of its GPU.
func TestSharesAreBytes(t *testing.T) {
	books := cache.New()
	books.SetNode("a", gpu.Inventory{Devices: []gpu.Device{
		{UUID: "GPU-1", Model: "T4", Allocatable: gpu.SharesPerDevice, ShareMiB: 1024}, {UUID: "GPU-2", Index: 1, Model: "A100", Allocatable: gpu.SharesPerDevice, ShareMiB: 4096},
	}})
	books.AddPod("a", placement.Holding{
		Pod:        placement.PodRef{Namespace: "ml", Name: "two", UID: "1"},
		Request:    placement.Request{Count: 2, InShares: true, Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: 6})},
		Assignment: placement.Assignment{Shares: []placement.Share{{Device: "GPU-1", Units: 3}, {Device: "GPU-2", Units: 3}}},
	})
	registry := newRegistry(t)
	parts := Fleet{
		Nodes: books.Nodes, Facts: noFacts, Assumed: books.AssumedBefore,
		Waiting: func() []*v1.Pod { return nil }, Pods: true,
	}.Series
	want(t, with(t, registry, parts), []string{"gpumem_extender_pod_allocated_bytes", "gpumem_extender_gpu_capacity_bytes"}, `
# HELP gpumem_extender_gpu_capacity_bytes Memory that a GPU offers to pods.
# TYPE gpumem_extender_gpu_capacity_bytes gauge
gpumem_extender_gpu_capacity_bytes{gpu="0",model="T4",node="a",uuid="GPU-1"} 1.073741824e+10
gpumem_extender_gpu_capacity_bytes{gpu="1",model="A100",node="a",uuid="GPU-2"} 4.294967296e+10
# HELP gpumem_extender_pod_allocated_bytes Memory that is allocated to a pod, on all GPUs of its node.
# TYPE gpumem_extender_pod_allocated_bytes gauge
gpumem_extender_pod_allocated_bytes{namespace="ml",node="a",pod="two"} 1.610612736e+10
`)
}

// TestFleet has a node with an empty, a partly allocated and a failed GPU, a node without free CPU, a
// node with an exclusive pod, a node that takes no new pods, and a node with a taint.
func TestFleet(t *testing.T) {
	registry := newRegistry(t)
	books := cache.New()
	facts := func([]placement.Node) inspect.Facts {
		return inspect.Facts{Nodes: map[string]inspect.NodeFacts{"d": {Refuses: &decide.Refusal{Message: inspect.NodeNotReady}}, "e": {Taint: "team"}}}
	}
	parts := Fleet{Nodes: books.Nodes, Facts: facts, Assumed: books.AssumedBefore, Waiting: func() []*v1.Pod { return waiting(7) }}.Series
	inv := func(cpu int64, devices ...gpu.Device) gpu.Inventory {
		return gpu.Inventory{UnitMiB: 1024, Devices: devices, CPU: cpu}
	}
	books.SetNode("a", inv(0,
		gpu.Device{UUID: "GPU-1", Index: 0, Model: "T4", Allocatable: 10},
		gpu.Device{UUID: "GPU-2", Index: 1, Model: "T4", Allocatable: 10},
		gpu.Device{UUID: "GPU-3", Index: 2, Model: "T4", Allocatable: 4, Status: gpu.Unhealthy("XID 79")},
	))
	books.SetNode("b", inv(1000, gpu.Device{UUID: "GPU-4", Allocatable: 2}))
	books.SetNode("c", inv(0, gpu.Device{UUID: "GPU-5", Allocatable: 20}))
	books.AddPod("c", placement.Holding{
		Pod:        placement.PodRef{UID: "alone"},
		Request:    placement.Request{Policy: placement.Exclusive, Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: 4})},
		Assignment: placement.Assignment{Shares: []placement.Share{{Device: "GPU-5", Units: 4}}},
	})
	books.SetNode("d", inv(0, gpu.Device{UUID: "GPU-6", Model: "T4", Allocatable: 40}))
	books.SetNode("e", inv(0, gpu.Device{UUID: "GPU-7", Model: "T4", Allocatable: 80}, gpu.Device{UUID: "GPU-8", Index: 1, Model: "T4", Allocatable: 80, Status: gpu.Unhealthy("")}))
	books.SetNode("plain", inv(0))
	books.AddPod("a", placement.Holding{
		Pod:        placement.PodRef{UID: "u"},
		Request:    placement.Request{Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: 4})},
		Assignment: placement.Assignment{Shares: []placement.Share{{Device: "GPU-2", Units: 4}}},
	})
	books.AddPod("b", placement.Holding{Pod: placement.PodRef{UID: "cpu"}, Request: placement.Request{CPU: 1000}})

	const text = `
# HELP gpumem_extender_fragmentation_ratio Share of the free memory on partly allocated GPUs: 0 if all free memory is on empty GPUs.
# TYPE gpumem_extender_fragmentation_ratio gauge
gpumem_extender_fragmentation_ratio 0.0625
# HELP gpumem_extender_free_bytes Unallocated memory of GPUs that take new pods, on nodes that are schedulable.
# TYPE gpumem_extender_free_bytes gauge
gpumem_extender_free_bytes 1.03079215104e+11
# HELP gpumem_extender_gpu_allocated_bytes Memory of a GPU that is allocated to pods.
# TYPE gpumem_extender_gpu_allocated_bytes gauge
gpumem_extender_gpu_allocated_bytes{gpu="0",model="",node="b",uuid="GPU-4"} 0
gpumem_extender_gpu_allocated_bytes{gpu="0",model="",node="c",uuid="GPU-5"} 4.294967296e+09
gpumem_extender_gpu_allocated_bytes{gpu="0",model="T4",node="a",uuid="GPU-1"} 0
gpumem_extender_gpu_allocated_bytes{gpu="0",model="T4",node="d",uuid="GPU-6"} 0
gpumem_extender_gpu_allocated_bytes{gpu="0",model="T4",node="e",uuid="GPU-7"} 0
gpumem_extender_gpu_allocated_bytes{gpu="1",model="T4",node="a",uuid="GPU-2"} 4.294967296e+09
gpumem_extender_gpu_allocated_bytes{gpu="1",model="T4",node="e",uuid="GPU-8"} 0
gpumem_extender_gpu_allocated_bytes{gpu="2",model="T4",node="a",uuid="GPU-3"} 0
# HELP gpumem_extender_largest_free_bytes Largest amount that a pod could get on one GPU now, on nodes that are schedulable.
# TYPE gpumem_extender_largest_free_bytes gauge
gpumem_extender_largest_free_bytes 8.589934592e+10
# HELP gpumem_extender_node_schedulable Whether a node takes new pods with GPU memory: 1, or 0 while it is cordoned, NotReady, or its kubelet offers none. The label taint is the key of a taint that they must tolerate, other than nvidia.com/gpu and gpumem's resources.
# TYPE gpumem_extender_node_schedulable gauge
gpumem_extender_node_schedulable{node="a",taint=""} 1
gpumem_extender_node_schedulable{node="b",taint=""} 1
gpumem_extender_node_schedulable{node="c",taint=""} 1
gpumem_extender_node_schedulable{node="d",taint=""} 0
gpumem_extender_node_schedulable{node="e",taint="team"} 1
# HELP gpumem_extender_nodes Nodes that offer GPU memory.
# TYPE gpumem_extender_nodes gauge
gpumem_extender_nodes 5
# HELP gpumem_extender_stranded_bytes Unallocated memory that no pod can get: on GPUs that take no new pods or that one pod has alone, and on nodes that are cordoned or NotReady, have no free CPU, or have a kubelet that offers none.
# TYPE gpumem_extender_stranded_bytes gauge
gpumem_extender_stranded_bytes 1.52471339008e+11
# HELP gpumem_extender_tainted_free_bytes Part of free_bytes on nodes with a taint that pods must tolerate: see node_schedulable.
# TYPE gpumem_extender_tainted_free_bytes gauge
gpumem_extender_tainted_free_bytes 8.589934592e+10
# HELP gpumem_extender_waiting_pods Pods that request GPU memory and have no node.
# TYPE gpumem_extender_waiting_pods gauge
gpumem_extender_waiting_pods 7
`
	names := []string{
		"gpumem_extender_fragmentation_ratio", "gpumem_extender_free_bytes", "gpumem_extender_gpu_allocated_bytes", "gpumem_extender_largest_free_bytes",
		"gpumem_extender_node_schedulable", "gpumem_extender_nodes", "gpumem_extender_stranded_bytes", "gpumem_extender_tainted_free_bytes", "gpumem_extender_waiting_pods",
	}
	want(t, with(t, registry, parts), names, text)

	// A node that is gone leaves no series behind.
	books.RemoveNode("a")
	if got := series(t, with(t, registry, parts), "gpumem_extender_gpu_capacity_bytes"); got != 5 {
		t.Errorf("%d GPUs, want 5", got)
	}
	_, err := books.AssumePod(placement.PodRef{UID: "late"}, "b", placement.Request{Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: 1})}, placement.Binpack, time.Now().Add(-time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	want(t, with(t, registry, parts), []string{"gpumem_extender_assumed_pods"}, `
# HELP gpumem_extender_assumed_pods Pods whose binding is in progress, or not confirmed by the watch yet.
# TYPE gpumem_extender_assumed_pods gauge
gpumem_extender_assumed_pods 1
`)
}

// gpus implements GPUs with the inventory of a test.
type gpus struct{ inv gpu.Inventory }

func (g *gpus) Inventory() (gpu.Inventory, string, <-chan struct{}) { return g.inv, "", nil }
func (g *gpus) Usage(id gpu.UUID) (uint64, float64, bool)           { return 5, 0.25, id == "GPU-1" }

func TestGPUs(t *testing.T) {
	registry := newRegistry(t)
	g := &gpus{inv: gpu.Inventory{Enforcement: gpu.EnforcementMPS, Devices: []gpu.Device{
		{UUID: "GPU-1", Index: 0, Model: "T4", MemoryMiB: 16},
		{UUID: "GPU-2", Index: 1, Model: "T4\xff", MemoryMiB: 16, Status: gpu.Unhealthy("XID 79")},
	}}}
	RegisterGPUs(registry, g)
	want(t, registry, nil, `
# HELP gpumem_device_plugin_enforcement Enforcement level of the node: 1 for the level in force, and 0 for the others (advisory, mps, kernel).
# TYPE gpumem_device_plugin_enforcement gauge
gpumem_device_plugin_enforcement{level="advisory"} 0
gpumem_device_plugin_enforcement{level="kernel"} 0
gpumem_device_plugin_enforcement{level="mps"} 1
# HELP gpumem_device_plugin_gpu_healthy Whether a GPU is healthy: 1 or 0.
# TYPE gpumem_device_plugin_gpu_healthy gauge
gpumem_device_plugin_gpu_healthy{gpu="0",model="T4",uuid="GPU-1"} 1
gpumem_device_plugin_gpu_healthy{gpu="1",model="T4?",uuid="GPU-2"} 0
# HELP gpumem_device_plugin_gpu_memory_bytes All memory of a GPU, including the memory of the driver and the reserve.
# TYPE gpumem_device_plugin_gpu_memory_bytes gauge
gpumem_device_plugin_gpu_memory_bytes{gpu="0",model="T4",uuid="GPU-1"} 1.6777216e+07
gpumem_device_plugin_gpu_memory_bytes{gpu="1",model="T4?",uuid="GPU-2"} 1.6777216e+07
# HELP gpumem_device_plugin_gpu_memory_used_bytes Memory of a GPU that programs use, by NVML, at the last probe.
# TYPE gpumem_device_plugin_gpu_memory_used_bytes gauge
gpumem_device_plugin_gpu_memory_used_bytes{gpu="0",model="T4",uuid="GPU-1"} 5
# HELP gpumem_device_plugin_gpu_utilization_ratio Share of the time in which a kernel ran on a GPU, by NVML, at the last probe.
# TYPE gpumem_device_plugin_gpu_utilization_ratio gauge
gpumem_device_plugin_gpu_utilization_ratio{gpu="0",model="T4",uuid="GPU-1"} 0.25
`)
	g.inv.Devices = nil
	if got := series(t, registry, "gpumem_device_plugin_gpu_healthy"); got != 0 {
		t.Errorf("%d GPUs, want none", got)
	}
}

func TestContainers(t *testing.T) {
	registry := newRegistry(t)
	RegisterContainers(registry, func() []usage.Sample {
		return []usage.Sample{
			{Pod: placement.PodRef{Namespace: "ns", Name: "p", UID: "u"}, Container: "main", Device: "GPU-1", Used: 7, Granted: 5, Peak: 9, SM: new(40)},
			{Pod: placement.PodRef{Namespace: "ns", Name: "p", UID: "u"}, Container: "idle", Device: "GPU-1", SM: new(0)},
			{Pod: placement.PodRef{Namespace: "ns", Name: "p", UID: "u"}, Container: "unknown", Device: "GPU-1"},
		}
	}, func() map[gpu.UUID]uint64 { return map[gpu.UUID]uint64{"GPU-1": 11} })
	want(t, registry, nil, `
# HELP gpumem_device_plugin_container_memory_granted_bytes Memory of that GPU that the container was granted.
# TYPE gpumem_device_plugin_container_memory_granted_bytes gauge
gpumem_device_plugin_container_memory_granted_bytes{container="idle",namespace="ns",pod="p",uuid="GPU-1"} 0
gpumem_device_plugin_container_memory_granted_bytes{container="main",namespace="ns",pod="p",uuid="GPU-1"} 5
gpumem_device_plugin_container_memory_granted_bytes{container="unknown",namespace="ns",pod="p",uuid="GPU-1"} 0
# HELP gpumem_device_plugin_container_memory_peak_bytes Peak of the measured use of that GPU by the container.
# TYPE gpumem_device_plugin_container_memory_peak_bytes gauge
gpumem_device_plugin_container_memory_peak_bytes{container="idle",namespace="ns",pod="p",uuid="GPU-1"} 0
gpumem_device_plugin_container_memory_peak_bytes{container="main",namespace="ns",pod="p",uuid="GPU-1"} 9
gpumem_device_plugin_container_memory_peak_bytes{container="unknown",namespace="ns",pod="p",uuid="GPU-1"} 0
# HELP gpumem_device_plugin_container_memory_used_bytes Memory of a GPU that a container uses, by NVML, at the last probe. Containers that use none are left out.
# TYPE gpumem_device_plugin_container_memory_used_bytes gauge
gpumem_device_plugin_container_memory_used_bytes{container="idle",namespace="ns",pod="p",uuid="GPU-1"} 0
gpumem_device_plugin_container_memory_used_bytes{container="main",namespace="ns",pod="p",uuid="GPU-1"} 7
gpumem_device_plugin_container_memory_used_bytes{container="unknown",namespace="ns",pod="p",uuid="GPU-1"} 0
# HELP gpumem_device_plugin_container_sm_utilization_ratio Share of the time since the previous probe in which that GPU ran kernels of the container, by NVML: the sum over its processes. Absent if NVML does not report it.
# TYPE gpumem_device_plugin_container_sm_utilization_ratio gauge
gpumem_device_plugin_container_sm_utilization_ratio{container="idle",namespace="ns",pod="p",uuid="GPU-1"} 0
gpumem_device_plugin_container_sm_utilization_ratio{container="main",namespace="ns",pod="p",uuid="GPU-1"} 0.4
# HELP gpumem_device_plugin_mps_server_memory_bytes Memory of a GPU that clients of MPS use and that NVML counts as memory of the MPS server: container_memory_used_bytes lacks it. Absent if there is none.
# TYPE gpumem_device_plugin_mps_server_memory_bytes gauge
gpumem_device_plugin_mps_server_memory_bytes{uuid="GPU-1"} 11
`)
}

// The metric has a bounded number of series, and their sum includes all namespaces.
func TestNamespacesAreBounded(t *testing.T) {
	registry := newRegistry(t)
	books := cache.New()
	books.SetNode("a", gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: "GPU-1", Model: "T4", Allocatable: 1000}}})
	add := func(namespace string, units gpu.Units) {
		books.AddPod("a", placement.Holding{
			Pod:        placement.PodRef{Namespace: namespace, Name: "p", UID: namespace},
			Request:    placement.Request{Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: units})},
			Assignment: placement.Assignment{Shares: []placement.Share{{Device: "GPU-1", Units: units}}},
		})
	}
	for i := range maxNamespaces - 1 {
		add(fmt.Sprint("team-", i), 2)
	}
	for i := range 3 {
		add(fmt.Sprint("small-", i), 1)
	}
	parts := Fleet{Nodes: books.Nodes, Facts: noFacts, Assumed: books.AssumedBefore, Waiting: func() []*v1.Pod { return nil }}.Series
	families, err := with(t, registry, parts).Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum, of := 0.0, make(map[string]float64)
	for _, family := range families {
		for _, m := range family.Metric {
			switch family.GetName() {
			case "gpumem_extender_namespace_allocated_bytes":
				of[m.Label[0].GetValue()] = m.Gauge.GetValue() / (1 << 30)
				sum += m.Gauge.GetValue() / (1 << 30)
			case "gpumem_extender_waiting_oldest_seconds":
				if got := m.Gauge.GetValue(); got != 0 {
					t.Errorf("no pod waits, and the oldest is %g seconds old", got)
				}
			}
		}
	}
	if len(of) != maxNamespaces+1 || of["(others)"] != 2 || of["small-0"] != 1 || of["team-7"] != 2 || sum != 2*(maxNamespaces-1)+3 {
		t.Errorf("%d series that sum up to %g; others have %g", len(of), sum, of["(others)"])
	}
}

func noFacts([]placement.Node) inspect.Facts { return inspect.Facts{} }

// waiting returns n pods of the namespace team. pod-0 is an hour old, and each next pod is a second
// younger.
func waiting(n int) (out []*v1.Pod) {
	created := time.Now().Add(-time.Hour)
	for i := range n {
		out = append(out, &v1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: fmt.Sprint("pod-", i), CreationTimestamp: metav1.NewTime(created.Add(time.Duration(i) * time.Second)),
		}})
	}
	return out
}

func TestOldestWaitingPodsHaveSeries(t *testing.T) {
	pods := waiting(maxWaiting + 1)
	slices.Reverse(pods)
	fleet := Fleet{
		Nodes: func() []placement.Node { return nil }, Facts: noFacts, Assumed: func(time.Time) []cache.Assumed { return nil },
		Waiting: func() []*v1.Pod { return pods },
	}
	ages := make(map[string]float64)
	for family := range fleet.Series {
		for _, m := range family.Metric {
			switch family.GetName() {
			case "gpumem_extender_pod_waiting_seconds":
				ages[m.Label[0].GetValue()+"/"+m.Label[1].GetValue()] = m.Gauge.GetValue()
			case "gpumem_extender_waiting_oldest_seconds":
				if age := m.Gauge.GetValue(); age < 3600 || age > 3700 {
					t.Errorf("the oldest pod has waited %g s, want an hour", age)
				}
			}
		}
	}
	if _, youngest := ages[fmt.Sprint("team/pod-", maxWaiting)]; len(ages) != maxWaiting || youngest {
		t.Errorf("%d series, with the youngest pod: %t; want %d without it", len(ages), youngest, maxWaiting)
	}
	if got := ages["team/pod-0"] - ages["team/pod-1"]; got < 0.999 || got > 1.001 {
		t.Errorf("pod-0 has waited %g s longer than pod-1, want 1", got)
	}
}
