package metrics

import "github.com/prometheus/client_golang/prometheus"

// DevicePlugin is what gpumem-device-plugin measures.
type DevicePlugin struct {
	drift       prometheus.Gauge
	corrections *prometheus.CounterVec
}

// NewDevicePlugin registers the metrics of gpumem-device-plugin. It panics when
// they are registered already.
func NewDevicePlugin(to prometheus.Registerer) *DevicePlugin {
	const subsystem = "device_plugin"
	m := &DevicePlugin{
		drift: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "assignment_drift_pods",
			Help: "Pods of the node whose assignment annotation was not what the kubelet has given them at the last look.",
		}),
		corrections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "assignment_corrections_total",
			Help: "Assignment annotations written, by reason: placed (there was none), held (the kubelet has given other GPUs), planned (the kubelet has given the pod's GPUs to another).",
		}, []string{"reason"}),
	}
	to.MustRegister(m.drift, m.corrections)
	for _, reason := range []string{"placed", "held", "planned"} {
		m.corrections.WithLabelValues(reason)
	}
	return m
}

// Drifted implements deviceplugin.Metrics.
func (m *DevicePlugin) Drifted(pods int) { m.drift.Set(float64(pods)) }

// Corrected implements deviceplugin.Metrics.
func (m *DevicePlugin) Corrected(reason string) { m.corrections.WithLabelValues(reason).Inc() }
