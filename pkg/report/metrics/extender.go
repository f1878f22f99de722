package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/history"
)

// Extender has the metrics of gpumem-extender and gpumem-scheduler.
type Extender struct {
	took      *prometheus.HistogramVec
	decisions *prometheus.CounterVec
	sampled   prometheus.Counter

	compared prometheus.Counter
	checked  prometheus.Gauge
	wrong    *prometheus.GaugeVec
	healed   *prometheus.CounterVec
}

// outcomes returns the successful result of each verb.
func outcomes() map[string]string {
	return map[string]string{
		history.Filter: history.Fits, history.Prioritize: history.Fits,
		history.Preempt: history.Fits, history.Bind: history.Bound,
	}
}

// refusals returns the reasons for refusals of filter and bind.
func refusals() []string {
	reasons := []string{history.Unreadable, decide.Elsewhere, decide.Confusable, history.Error}
	for reason := placement.NoDevices; reason <= placement.Fragmented; reason++ {
		reasons = append(reasons, reason.String())
	}
	return reasons
}

// NewExtender registers the metrics of gpumem-extender or gpumem-scheduler. It panics if they are registered
// already.
func NewExtender(registerer prometheus.Registerer) *Extender {
	r := registry{registerer, "extender"}
	m := &Extender{
		took: r.durations("Time to answer kube-scheduler, by verb (filter, prioritize, preempt or bind).",
			prometheus.ExponentialBuckets(0.0001, 2.5, 14), "verb"), // 0.1 ms to 15 s
		decisions: r.counters("decisions_total", "Answers about pods, by verb, result (fits, bound, unfit, refused or failed) and the reason of the closest node.",
			"verb", "result", "reason"),
		sampled:  r.counters("sampled_questions_total", "Requests in which kube-scheduler asked about a sample of the nodes (percentageOfNodesToScore).").WithLabelValues(),
		checked:  r.gauges("cache_checked_timestamp_seconds", "When the cache was last compared with the API server; 0: not yet.").WithLabelValues(),
		compared: r.counters("cache_checks_total", "Comparisons of the cache with the API server.").WithLabelValues(),
		wrong:    r.gauges("cache_drift_objects", "Objects of the cache that differed from the API server at the last check, by kind (pod or node).", "kind"),
		healed:   r.counters("cache_healed_objects_total", "Objects of the cache that checks have corrected, by kind (pod or node).", "kind"),
	}
	for verb, result := range outcomes() {
		m.took.WithLabelValues(verb)
		m.decisions.WithLabelValues(verb, result, "")
	}
	for _, reason := range refusals() {
		m.decisions.WithLabelValues(history.Filter, history.Unfit, reason)
		m.decisions.WithLabelValues(history.Bind, history.Refused, reason)
	}
	m.count(nil)
	return m
}

// Answered records the duration of one call of a verb.
func (m *Extender) Answered(verb string, took time.Duration) {
	m.took.WithLabelValues(verb).Observe(took.Seconds())
}

// Decided counts one decision about a pod.
func (m *Extender) Decided(d history.Decision) {
	m.decisions.WithLabelValues(d.Verb, d.Result, d.Reason).Inc()
	if d.Sampled {
		m.sampled.Inc()
	}
}

// Compared counts the cached objects that a comparison (controller.Comparer) has corrected, by kind.
func (m *Extender) Compared(wrong map[string]int) {
	m.compared.Inc()
	m.checked.SetToCurrentTime()
	m.count(wrong)
}

func (m *Extender) count(wrong map[string]int) {
	for _, kind := range []string{"pod", "node"} {
		m.wrong.WithLabelValues(kind).Set(float64(wrong[kind]))
		m.healed.WithLabelValues(kind).Add(float64(wrong[kind]))
	}
}
