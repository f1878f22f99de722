package metrics

import "github.com/prometheus/client_golang/prometheus"

// Extender is what gpumem-extender measures.
type Extender struct {
	compared prometheus.Counter
	wrong    *prometheus.GaugeVec
	healed   *prometheus.CounterVec
}

// NewExtender registers the metrics of gpumem-extender. It panics when they are
// registered already.
func NewExtender(to prometheus.Registerer) *Extender {
	const subsystem = "extender"
	m := &Extender{
		compared: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "cache_checks_total",
			Help: "Comparisons of the cache with the API server.",
		}),
		wrong: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "cache_drift_objects",
			Help: "Objects that the cache had wrong at the last check, by kind (pod or node).",
		}, []string{"kind"}),
		healed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "cache_healed_objects_total",
			Help: "Objects that the cache had wrong and that checks have put right, by kind (pod or node).",
		}, []string{"kind"}),
	}
	to.MustRegister(m.compared, m.wrong, m.healed)
	m.count(nil, nil)
	return m
}

// Compared implements controller.Drift.
func (m *Extender) Compared(wrong, healed map[string]int) {
	m.compared.Inc()
	m.count(wrong, healed)
}

func (m *Extender) count(wrong, healed map[string]int) {
	for _, kind := range []string{"pod", "node"} {
		m.wrong.WithLabelValues(kind).Set(float64(wrong[kind]))
		m.healed.WithLabelValues(kind).Add(float64(healed[kind]))
	}
}
