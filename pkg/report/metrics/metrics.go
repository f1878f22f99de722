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
	// freshness is the maximum age of a response.
	freshness = time.Second
	// maxScrapes is the maximum number of scrapes at a time and per second, because the text of a large
	// fleet has megabytes. A slow reader occupies its slot for longer.
	maxScrapes = 16
	// patience is the maximum time that a scrape waits for a slot.
	patience = time.Second
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

func (r registry) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Subsystem: r.subsystem, Name: name, Help: help, Buckets: buckets}, labels)
}

// Series yields metrics in parts, each computed on demand, so that a large fleet needs little memory.
// Parts of the same name must follow one another.
type Series = iter.Seq[*dto.MetricFamily]

// Handler serves metrics in Prometheus' text format. It creates the text at most once per freshness, and
// serves maxScrapes scrapes per second. Others wait for patience and are then refused, so a client that
// scrapes without pause gets about one response per second.
func Handler(from prometheus.Gatherer, more ...Series) http.Handler {
	return &scrapes{from: from, more: more, slots: make(chan struct{}, maxScrapes)}
}

type scrapes struct {
	from  prometheus.Gatherer
	more  []Series
	slots chan struct{}

	mu     sync.Mutex // held while the text is created, so concurrent scrapes wait for it
	made   time.Time
	zipped []byte
}

func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	turn := time.NewTimer(patience)
	defer turn.Stop()
	select {
	case s.slots <- struct{}{}:
		defer s.giveBack(time.Now())
	case <-r.Context().Done():
		return
	case <-turn.C:
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

// giveBack frees a slot, at the earliest one second after it was taken.
func (s *scrapes) giveBack(taken time.Time) {
	time.AfterFunc(time.Until(taken.Add(time.Second)), func() { <-s.slots })
}

// current returns the compressed text.
func (s *scrapes) current() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.zipped == nil || time.Since(s.made) >= freshness {
		var out bytes.Buffer
		to, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed) // the level is valid
		if err := s.write(to); err != nil {
			return nil, err
		}
		_ = to.Close() // a buffer does not fail
		s.zipped, s.made = out.Bytes(), time.Now()
	}
	return s.zipped, nil
}

// write writes all metrics as text.
func (s *scrapes) write(to io.Writer) error {
	families, err := s.from.Gather()
	if err != nil {
		return fmt.Errorf("gather metrics: %w", err)
	}
	for _, series := range append([]Series{slices.Values(families)}, s.more...) {
		var part bytes.Buffer
		last := ""
		for family := range series {
			part.Reset()
			if _, err := expfmt.MetricFamilyToText(&part, family); err != nil {
				return fmt.Errorf("write metrics: %w", err)
			}
			text := part.Bytes()
			if family.GetName() == last {
				text = withoutHeader(text)
			}
			last = family.GetName()
			_, _ = to.Write(text) // a buffer does not fail
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
