package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

//go:embed index.html page.css page.js
var files embed.FS

// Source supplies the content of the page.
type Source struct {
	Nodes   func() []placement.Node
	Facts   func([]placement.Node) inspect.Facts // facts about these nodes, and the waiting pods
	Missing func() string                        // parts that are not ready yet; empty if the content is complete
	Used    func() map[gpu.UUID]int64            // used memory in MiB, for GPUs with a measurement

	Version string // of gpumem
	Cluster string // name of the cluster; may be empty
}

// Fleet is the content of the page, as JSON.
type Fleet struct {
	Version string             `json:"version"`
	Cluster string             `json:"cluster,omitempty"`
	Missing string             `json:"missing,omitempty"`
	Nodes   []inspect.Node     `json:"nodes"`             // without UIDs of pods
	UsedMiB map[gpu.UUID]int64 `json:"usedMiB,omitempty"` // by NVML, for GPUs with a measurement
	Waiting []WaitingPod       `json:"waiting"`
}

// WaitingPod is a group of waiting pods with the same controller, request and reason.
type WaitingPod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`            // of the first pod
	Owner     string    `json:"owner,omitempty"` // the pods' controller, as KIND/NAME
	Count     int       `json:"count"`
	MemoryMiB int64     `json:"memoryMiB,omitempty"` // requested by each pod; 0 for shares, or if the nodes' units differ
	Oldest    time.Time `json:"oldest,omitzero"`     // creation time of the oldest pod
	Reason    string    `json:"reason"`
}

// freshness is the maximum age of a response.
const freshness = time.Second

// Handler serves readHandlers by path and, unless source is nil, the page. Parameter now is the clock.
func Handler(source *Source, readHandlers map[string]http.Handler, now func() time.Time) http.Handler {
	mux := http.NewServeMux()
	for path, handler := range readHandlers {
		mux.Handle("GET "+path, handler)
	}
	if source != nil {
		mux.Handle("GET /{$}", file("index.html"))
		mux.Handle("GET /page.css", file("page.css"))
		mux.Handle("GET /page.js", file("page.js"))
		mux.Handle("GET /fleet", &fleet{source: *source, now: now})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsLoopback(r.Host) {
			http.Error(w, "this page is served to localhost only: forward its port, and open http://localhost:PORT/", http.StatusForbidden)
			return
		}
		header := w.Header()
		header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		mux.ServeHTTP(w, r)
	})
}

// file serves an embedded file.
func file(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, name) })
}

// IsLoopback reports whether a Host header or a listen address is a name or an address of the loopback.
func IsLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// fleet serves the fleet as JSON, computed at most once per freshness.
type fleet struct {
	source Source
	now    func() time.Time

	mu        sync.Mutex // held while the fleet is computed, so concurrent requests wait for it
	createdAt time.Time
	zipped    []byte
	tag       string
}

func (f *fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, tag, err := f.current()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("ETag", tag)
	header.Set("Cache-Control", "no-cache")
	header.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		http.Error(w, "this resource needs a client that accepts gzip", http.StatusNotAcceptable)
		return
	}
	header.Set("Content-Type", "application/json")
	header.Set("Content-Encoding", "gzip")
	_, _ = w.Write(body) // an error means that the client is gone
}

func (f *fleet) current() (body []byte, tag string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); f.zipped == nil || now.Sub(f.createdAt) >= freshness {
		var text bytes.Buffer
		if err := json.NewEncoder(&text).Encode(NewFleet(f.source)); err != nil {
			return nil, "", fmt.Errorf("encode the fleet: %w", err)
		}
		sum := sha256.Sum256(text.Bytes())
		if tag := `"` + hex.EncodeToString(sum[:12]) + `"`; tag != f.tag {
			var zipped bytes.Buffer
			zip := gzip.NewWriter(&zipped)
			_, _ = zip.Write(text.Bytes()) // a buffer does not fail
			_ = zip.Close()
			f.zipped, f.tag = zipped.Bytes(), tag
		}
		f.createdAt = now
	}
	return f.zipped, f.tag, nil
}

// NewFleet computes the content of the page.
func NewFleet(source Source) Fleet {
	nodes := source.Nodes()
	report := inspect.New(nodes, source.Facts(nodes))
	out := Fleet{
		Version: source.Version, Cluster: source.Cluster, Missing: source.Missing(),
		Nodes: report.Nodes, UsedMiB: source.Used(), Waiting: []WaitingPod{},
	}
	for _, n := range out.Nodes {
		removeUIDs(n.Unattributed)
		for _, g := range n.GPUs {
			removeUIDs(g.Pods)
			removeUIDs(g.NominatedPods)
		}
	}
	unit := report.UnitMiB()
	for _, g := range report.WaitingAlike() {
		out.Waiting = append(out.Waiting, WaitingPod{
			Namespace: g.Namespace, Name: g.Name, Owner: g.Owner, Count: g.Count,
			MemoryMiB: g.RequestedMemory(unit).MiB, Oldest: g.Oldest, Reason: g.Explain(),
		})
	}
	return out
}

// removeUIDs removes the UIDs of pods. The page does not use UIDs, and they would be half of a compressed
// response.
func removeUIDs(pods []inspect.Pod) {
	for i := range pods {
		pods[i].UID = ""
	}
}
