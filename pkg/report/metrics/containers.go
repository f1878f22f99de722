package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/usage"
)

// containerCollector collects the containers' usage that package usage measured last.
type containerCollector struct {
	samples                 func() []usage.Sample
	serverMemory            func() map[gpu.UUID]uint64
	used, granted, peak, sm *prometheus.Desc
	merged                  *prometheus.Desc
}

// RegisterContainers registers the metrics of containers: used and granted GPU memory, and GPU time. It
// panics if they are registered already.
func RegisterContainers(registerer prometheus.Registerer, samples func() []usage.Sample, serverMemory func() map[gpu.UUID]uint64) {
	newDesc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "device_plugin", name), help, []string{"namespace", "pod", "container", "uuid"}, nil)
	}
	registerer.MustRegister(&containerCollector{
		samples: samples, serverMemory: serverMemory,
		merged: prometheus.NewDesc(prometheus.BuildFQName(namespace, "device_plugin", "mps_server_memory_bytes"),
			"Memory of a GPU that clients of MPS use and that NVML counts as memory of the MPS server: container_memory_used_bytes lacks it. Absent if there is none.", []string{"uuid"}, nil),
		used:    newDesc("container_memory_used_bytes", "Memory of a GPU that a container uses, by NVML, at the last probe. Containers that use none are left out."),
		granted: newDesc("container_memory_granted_bytes", "Memory of that GPU that the container was granted."),
		peak:    newDesc("container_memory_peak_bytes", "Peak of the measured use of that GPU by the container."),
		sm: newDesc("container_sm_utilization_ratio", "Share of the time since the previous probe in which that GPU ran kernels of the container, by NVML: the sum over its processes. "+
			"Absent if NVML does not report it."),
	})
}

// Describe implements prometheus.Collector.
func (c *containerCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.used
	out <- c.granted
	out <- c.peak
	out <- c.sm
	out <- c.merged
}

// Collect implements prometheus.Collector.
func (c *containerCollector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.samples() {
		labels := []string{s.Pod.Namespace, s.Pod.Name, s.Container, string(s.Device)}
		out <- prometheus.MustNewConstMetric(c.used, prometheus.GaugeValue, float64(s.Used), labels...)
		out <- prometheus.MustNewConstMetric(c.granted, prometheus.GaugeValue, float64(s.Granted), labels...)
		out <- prometheus.MustNewConstMetric(c.peak, prometheus.GaugeValue, float64(s.Peak), labels...)
		if s.SM != nil {
			out <- prometheus.MustNewConstMetric(c.sm, prometheus.GaugeValue, float64(*s.SM)/100, labels...)
		}
	}
	for uuid, bytes := range c.serverMemory() {
		out <- prometheus.MustNewConstMetric(c.merged, prometheus.GaugeValue, float64(bytes), string(uuid))
	}
}
