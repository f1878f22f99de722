package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gpumem/gpumem/pkg/controller"
	"github.com/gpumem/gpumem/pkg/deviceplugin"
)

var (
	_ controller.Drift     = (*Extender)(nil)
	_ deviceplugin.Metrics = (*DevicePlugin)(nil)
)

// newRegistry keeps the rules of Prometheus too: names, help texts, no value
// twice.
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

func want(t *testing.T, registry *prometheus.Registry, text string) {
	t.Helper()
	if err := testutil.GatherAndCompare(registry, strings.NewReader(text)); err != nil {
		t.Error(err)
	}
}

func TestExtender(t *testing.T) {
	registry := newRegistry(t)
	m := NewExtender(registry)
	m.Compared(map[string]int{"pod": 3, "node": 1}, map[string]int{"pod": 2})
	m.Compared(map[string]int{"pod": 1}, map[string]int{"pod": 1})
	want(t, registry, `
# HELP gpumem_extender_cache_checks_total Comparisons of the cache with the API server.
# TYPE gpumem_extender_cache_checks_total counter
gpumem_extender_cache_checks_total 2
# HELP gpumem_extender_cache_drift_objects Objects that the cache had wrong at the last check, by kind (pod or node).
# TYPE gpumem_extender_cache_drift_objects gauge
gpumem_extender_cache_drift_objects{kind="node"} 0
gpumem_extender_cache_drift_objects{kind="pod"} 1
# HELP gpumem_extender_cache_healed_objects_total Objects that the cache had wrong and that checks have put right, by kind (pod or node).
# TYPE gpumem_extender_cache_healed_objects_total counter
gpumem_extender_cache_healed_objects_total{kind="node"} 0
gpumem_extender_cache_healed_objects_total{kind="pod"} 3
`)
}

func TestDevicePlugin(t *testing.T) {
	registry := newRegistry(t)
	m := NewDevicePlugin(registry)
	m.Drifted(2)
	m.Corrected(deviceplugin.ReasonHeld)
	m.Corrected(deviceplugin.ReasonPlanned)
	m.Corrected(deviceplugin.ReasonHeld)
	want(t, registry, `
# HELP gpumem_device_plugin_assignment_corrections_total Assignment annotations written, by reason: placed (there was none), held (the kubelet has given other GPUs), planned (the kubelet has given the pod's GPUs to another).
# TYPE gpumem_device_plugin_assignment_corrections_total counter
gpumem_device_plugin_assignment_corrections_total{reason="held"} 2
gpumem_device_plugin_assignment_corrections_total{reason="placed"} 0
gpumem_device_plugin_assignment_corrections_total{reason="planned"} 1
# HELP gpumem_device_plugin_assignment_drift_pods Pods of the node whose assignment annotation was not what the kubelet has given them at the last look.
# TYPE gpumem_device_plugin_assignment_drift_pods gauge
gpumem_device_plugin_assignment_drift_pods 2
`)
}

func TestHandler(t *testing.T) {
	registry := NewRegistry()
	NewExtender(registry)
	answer := httptest.NewRecorder()
	Handler(registry).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{"\ngpumem_extender_cache_checks_total 0\n", "\ngo_goroutines ", "\nprocess_cpu_seconds_total "} {
		if !strings.Contains(answer.Body.String(), line) {
			t.Errorf("no %q in:\n%s", line, answer.Body)
		}
	}
}
