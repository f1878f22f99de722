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
	// freshness is how old an answer may be.
	freshness = time.Second
	// maxScrapes is how many are answered at a time, and in a second: a text is megabytes for
	// a large fleet. One that reads slowly keeps its text for longer.
	maxScrapes = 16
	// patience is how long others wait for their turn.
	patience = time.Second
)

// NewRegistry returns a registry with what each Go process tells of itself, and the version of the
// program.
func NewRegistry(version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "1, with the version of the program and of Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	registry.MustRegister( // into an empty registry
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

// Series are metrics in parts. Each part is made when it is asked for, so those of a large fleet need
// little memory. Parts of one name follow one another.
type Series = iter.Seq[*dto.MetricFamily]

// Handler answers /metrics, in Prometheus' text format. However many ask, the text is made
// once in a while, and few are sent it in a second. The others wait and are then refused: one that
// asks without end is answered about once a second.
func Handler(from prometheus.Gatherer, more ...Series) http.Handler {
	return &scrapes{from: from, more: more, slots: make(chan struct{}, maxScrapes)}
}

type scrapes struct {
	from  prometheus.Gatherer
	more  []Series
	slots chan struct{}

	mu     sync.Mutex // locked while it is made: others that ask wait for that
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
		_, _ = w.Write(zipped) // an error: the client is gone
		return
	}
	if text, err := gzip.NewReader(bytes.NewReader(zipped)); err == nil {
		_, _ = io.Copy(w, text)
	}
}

// giveBack frees a slot that was taken at a time, a second after that at the earliest.
func (s *scrapes) giveBack(taken time.Time) {
	time.AfterFunc(time.Until(taken.Add(time.Second)), func() { <-s.slots })
}

// current returns the text, compressed.
func (s *scrapes) current() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.zipped == nil || time.Since(s.made) >= freshness {
		var out bytes.Buffer
		to, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed) // the level is one
		if err := s.write(to); err != nil {
			return nil, err
		}
		_ = to.Close() // into memory
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
			_, _ = to.Write(text) // into memory
		}
	}
	return nil
}

// withoutHeader leaves out what comes before the samples.
func withoutHeader(text []byte) []byte {
	for bytes.HasPrefix(text, []byte("#")) {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return text
}
