package metrics

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
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
	// maxScrapes is how many are answered at a time. One that reads slowly holds a text.
	maxScrapes = 16
)

// NewRegistry returns a registry with what each Go process tells of itself.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister( // into an empty registry
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return registry
}

// Handler answers /metrics, in Prometheus' text format. However many ask, the text is made
// once in a while, and few are sent it at a time: the others are told to come again.
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
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, fmt.Sprintf("%d scrapes are being answered: come again", maxScrapes), http.StatusServiceUnavailable)
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
