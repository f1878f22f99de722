package metrics

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"iter"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

const namespace = "gpumem"

const (
	// maxAge is the maximum age of a response.
	maxAge = time.Second
	// maxScrapes is the maximum number of concurrent scrapes, and of scrapes per second, because the text of
	// a large fleet has megabytes. A slow reader occupies its slot for more than a second.
	maxScrapes = 16
	// scrapeWait is the maximum time that a scrape waits for a slot.
	scrapeWait = time.Second
)

// NewRegistry returns a registry with the standard metrics of a Go process and the version of the
// program.
func NewRegistry(version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "1, with the version of the program and of Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	registry.MustRegister( // the registry is empty
		build,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return registry
}

// registry registers the metrics of a subsystem. It panics if one is registered already.
type registry struct {
	prometheus.Registerer
	subsystem string
}

func (r registry) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: r.subsystem, Name: name, Help: help}, labels)
}

func (r registry) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: r.subsystem, Name: name, Help: help}, labels)
}

// durations registers the histogram of request durations.
func (r registry) durations(help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Subsystem: r.subsystem, Name: "request_duration_seconds", Help: help, Buckets: buckets}, labels)
}

// Series yields metrics in parts, each computed on demand, so that a large fleet needs little memory.
// Parts of the same metric must follow one another.
type Series = iter.Seq[*dto.MetricFamily]

// Handler serves metrics in Prometheus' text format. It creates the text at most once per maxAge, and
// serves at most maxScrapes scrapes per second. It refuses a further scrape with status 503 if no slot
// becomes free within scrapeWait.
func Handler(gatherer prometheus.Gatherer, series ...Series) http.Handler {
	return &scrapes{gatherer: gatherer, series: series, slots: make(chan struct{}, maxScrapes)}
}

type scrapes struct {
	gatherer prometheus.Gatherer
	series   []Series
	slots    chan struct{}

	mu        sync.Mutex // held while the text is created, so concurrent scrapes wait for it
	createdAt time.Time
	zipped    []byte
}

func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	deadline := time.NewTimer(scrapeWait)
	defer deadline.Stop()
	select {
	case s.slots <- struct{}{}:
		defer s.releaseSlot(time.Now())
	case <-r.Context().Done():
		return
	case <-deadline.C:
		w.Header().Set("Retry-After", "1")
		http.Error(w, fmt.Sprintf("more than %d scrapes in a second: try again later", maxScrapes), http.StatusServiceUnavailable)
		return
	}
	zipped, err := s.current()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	header.Set("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		header.Set("Content-Encoding", "gzip")
		header.Set("Content-Length", strconv.Itoa(len(zipped)))
		_, _ = w.Write(zipped) // an error means that the client is gone
		return
	}
	if text, err := gzip.NewReader(bytes.NewReader(zipped)); err == nil {
		_, _ = io.Copy(w, text)
	}
}

// releaseSlot frees a slot, at the earliest one second after it was taken.
func (s *scrapes) releaseSlot(taken time.Time) {
	time.AfterFunc(time.Until(taken.Add(time.Second)), func() { <-s.slots })
}

// current returns the compressed text.
func (s *scrapes) current() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.zipped == nil || time.Since(s.createdAt) >= maxAge {
		var out bytes.Buffer
		writer, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed) // the level is valid
		if err := s.write(writer); err != nil {
			return nil, err
		}
		_ = writer.Close() // a buffer does not fail
		s.zipped, s.createdAt = out.Bytes(), time.Now()
	}
	return s.zipped, nil
}

// write writes all metrics as text.
func (s *scrapes) write(writer io.Writer) error {
	families, err := s.gatherer.Gather()
	if err != nil {
		return fmt.Errorf("gather metrics: %w", err)
	}
	for _, series := range append([]Series{slices.Values(families)}, s.series...) {
		var part bytes.Buffer
		lastName := ""
		for family := range series {
			part.Reset()
			if _, err := expfmt.MetricFamilyToText(&part, family); err != nil {
				return fmt.Errorf("write metrics: %w", err)
			}
			text := part.Bytes()
			if family.GetName() == lastName {
				text = withoutHeader(text)
			}
			lastName = family.GetName()
			_, _ = writer.Write(text) // a buffer does not fail
		}
	}
	return nil
}

// withoutHeader removes the comment lines before the samples.
func withoutHeader(text []byte) []byte {
	for bytes.HasPrefix(text, []byte("#")) {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return text
}
