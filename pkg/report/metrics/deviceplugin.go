package metrics

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// DevicePlugin has the metrics of gpumem-device-plugin.
type DevicePlugin struct {
	took        *prometheus.HistogramVec
	failed      *prometheus.CounterVec
	drift       prometheus.Gauge
	corrections *prometheus.CounterVec
}

// NewDevicePlugin registers the metrics of gpumem-device-plugin. It panics if they are registered
// already.
func NewDevicePlugin(registerer prometheus.Registerer) *DevicePlugin {
	r := registry{registerer, "device_plugin"}
	m := &DevicePlugin{
		took: r.durations("Time to answer the kubelet, by call.", prometheus.ExponentialBuckets(0.001, 2.5, 10), "rpc"), // 1 ms to 4 s
		failed: r.counters("request_errors_total", "Calls of the kubelet that returned an error, by call. An error of GetPreferredAllocation or Allocate fails the pod.",
			"rpc"),
		drift: r.gauges("assignment_drift_pods", "Pods of the node whose assignment annotation differed from the kubelet's allocation at the last check.").WithLabelValues(),
		corrections: r.counters("assignment_corrections_total", "Assignment annotations written, by reason: placed (the annotation was missing or changed by somebody else), held (the kubelet allocated other GPUs), planned (the kubelet allocated the pod's GPUs to another pod).",
			"reason"),
	}
	for _, rpc := range []string{"GetPreferredAllocation", "Allocate", "PreStartContainer"} {
		m.took.WithLabelValues(rpc)
		m.failed.WithLabelValues(rpc)
	}
	for _, reason := range []string{"placed", "held", "planned"} {
		m.corrections.WithLabelValues(reason)
	}
	return m
}

// Drifted implements grants.Metrics.
func (m *DevicePlugin) Drifted(pods int) { m.drift.Set(float64(pods)) }

// Corrected implements grants.Metrics.
func (m *DevicePlugin) Corrected(reason string) { m.corrections.WithLabelValues(reason).Inc() }

// Answered records the duration and the error of one call of the kubelet.
func (m *DevicePlugin) Answered(rpc string, took time.Duration, err error) {
	m.took.WithLabelValues(rpc).Observe(took.Seconds())
	if err != nil {
		m.failed.WithLabelValues(rpc).Inc()
	}
}

// GPUs supplies the current state of a node's GPUs.
type GPUs interface {
	Inventory() (inv gpu.Inventory, reason string, changed <-chan struct{})
	Usage(gpu.UUID) (usedBytes uint64, busy float64, ok bool)
}

// gpuCollector collects the state of the GPUs at each scrape.
type gpuCollector struct {
	gpus  GPUs
	descs []*prometheus.Desc

	memory, used, busy, healthy, enforcement *prometheus.Desc
}

// RegisterGPUs registers the metrics of a node's GPUs. It panics if they are registered already.
func RegisterGPUs(registerer prometheus.Registerer, gpus GPUs) {
	c := &gpuCollector{gpus: gpus}
	of := func(name, help string, labels ...string) *prometheus.Desc {
		c.descs = append(c.descs, prometheus.NewDesc(prometheus.BuildFQName(namespace, "device_plugin", name), help, labels, nil))
		return c.descs[len(c.descs)-1]
	}
	device := []string{"gpu", "uuid", "model"}
	c.memory = of("gpu_memory_bytes", "All memory of a GPU, including the memory of the driver and the reserve.", device...)
	c.used = of("gpu_memory_used_bytes", "Memory of a GPU that programs use, by NVML, at the last probe.", device...)
	c.busy = of("gpu_utilization_ratio", "Share of the time in which a kernel ran on a GPU, by NVML, at the last probe.", device...)
	c.healthy = of("gpu_healthy", "Whether a GPU is healthy: 1 or 0.", device...)
	c.enforcement = of("enforcement", "Enforcement level of the node: 1 for the level in force, and 0 for the others (advisory, mps, kernel).", "level")
	registerer.MustRegister(c)
}

// Describe implements prometheus.Collector.
func (c *gpuCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *gpuCollector) Collect(out chan<- prometheus.Metric) {
	const mib = 1 << 20
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	inv, _, _ := c.gpus.Inventory()
	for _, d := range inv.Devices {
		labels := []string{strconv.Itoa(d.Index), string(d.UUID), strings.ToValidUTF8(d.Model, "?")} // Prometheus panics on invalid UTF-8
		gauge(c.memory, float64(d.MemoryMiB)*mib, labels...)
		gauge(c.healthy, oneIf(d.Status.Open()), labels...)
		used, busy, ok := c.gpus.Usage(d.UUID)
		if ok {
			gauge(c.used, float64(used), labels...)
		}
		if ok && busy >= 0 {
			gauge(c.busy, busy, labels...)
		}
	}
	for _, level := range []gpu.Enforcement{gpu.EnforcementAdvisory, gpu.EnforcementMPS, gpu.EnforcementKernel} {
		gauge(c.enforcement, oneIf(level == inv.Enforcement), string(level))
	}
}
