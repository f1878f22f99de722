package metrics

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
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

// Handler answers /metrics, in Prometheus' text format. However many ask, the text is made
// once in a while, and few are sent it in a second. The others wait and are then refused: one that
// asks without end is answered about once a second.
func Handler(from prometheus.Gatherer) http.Handler {
	return &scrapes{from: from, slots: make(chan struct{}, maxScrapes)}
}

type scrapes struct {
	from  prometheus.Gatherer
	slots chan struct{}

	mu     sync.Mutex // locked while it is made: others that ask wait for that
	made   time.Time
	text   []byte
	zipped []byte // nil until one asks for it
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
		http.Error(w, fmt.Sprintf("%d scrapes are answered in a second: come again", maxScrapes), http.StatusServiceUnavailable)
		return
	}
	zip := strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
	body, err := s.current(zip)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	header.Set("Content-Length", strconv.Itoa(len(body)))
	header.Set("Vary", "Accept-Encoding")
	if zip {
		header.Set("Content-Encoding", "gzip")
	}
	_, _ = w.Write(body) // an error: the client is gone
}

// giveBack frees a slot that was taken at a time, a second after that at the earliest.
func (s *scrapes) giveBack(taken time.Time) {
	time.AfterFunc(time.Until(taken.Add(time.Second)), func() { <-s.slots })
}

// current returns the text, or the same compressed.
func (s *scrapes) current(zip bool) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text == nil || time.Since(s.made) >= freshness {
		text, err := gather(s.from, len(s.text))
		if err != nil {
			return nil, err
		}
		s.text, s.zipped, s.made = text, nil, time.Now()
	}
	if !zip {
		return s.text, nil
	}
	if s.zipped == nil {
		var out bytes.Buffer
		to := gzip.NewWriter(&out)
		_, _ = to.Write(s.text) // into memory
		_ = to.Close()
		s.zipped = out.Bytes()
	}
	return s.zipped, nil
}

// gather returns all metrics as text, which is about as long as the last one.
func gather(from prometheus.Gatherer, size int) ([]byte, error) {
	families, err := from.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	out := bytes.NewBuffer(make([]byte, 0, size+size/16))
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(out, family); err != nil {
			return nil, fmt.Errorf("write metrics: %w", err)
		}
	}
	return out.Bytes(), nil
}
