package throughput

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/prometheus/common/expfmt"
	prometheus "github.com/prometheus/common/model"
)

const (
	// metricsURL is where gpumem's extender tells its metrics by default, in the
	// control plane's network.
	metricsURL = "http://127.0.0.1:8011/metrics"
	decisions  = "gpumem_extender_decisions_total"
	requests   = "apiserver_request_total"
)

// refusedBinds returns how many Binds the extender has refused so far, by reason.
func (b *bench) refusedBinds(ctx context.Context) (map[string]int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, metricsURL, http.NoBody)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: b.cluster.DialBesideControlPlane, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read the extender's metrics: %w", err)
	}
	defer response.Body.Close()
	return readRefused(response.Body)
}

// requests returns how many requests the API server has answered so far, by verb and resource.
func (b *bench) requests(ctx context.Context) (map[string]int, error) {
	metrics, err := b.client.Discovery().RESTClient().Get().AbsPath("/metrics").SetHeader("Accept", "text/plain").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return readRequests(bytes.NewReader(metrics))
}

// readRequests returns the requests but watches, by verb and resource, of metrics in Prometheus'
// text format.
func readRequests(metrics io.Reader) (map[string]int, error) {
	counters, err := read(metrics, requests)
	if err != nil {
		return nil, fmt.Errorf("the API server's metrics: %w", err)
	}
	out := make(map[string]int)
	for _, c := range counters {
		if c.labels["verb"] == "WATCH" || c.labels["resource"] == "" {
			continue
		}
		name := c.labels["verb"] + " " + c.labels["resource"]
		if sub := c.labels["subresource"]; sub != "" {
			name += "/" + sub
		}
		out[name] += c.value
	}
	return out, nil
}

// scrapers is how many scrape at once, without end, in a flood.
const scrapers = 512

// flood scrapes the extender until the function that it returns is called.
func (b *bench) flood(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	client := http.Client{Transport: &http.Transport{DialContext: b.cluster.DialBesideControlPlane, MaxIdleConnsPerHost: scrapers, DisableCompression: true}}
	var group sync.WaitGroup
	for range scrapers {
		group.Go(func() {
			for ctx.Err() == nil {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, metricsURL, http.NoBody)
				if err != nil {
					return
				}
				if response, err := client.Do(request); err == nil { // or it is refused
					_, _ = io.Copy(io.Discard, response.Body)
					response.Body.Close()
				}
			}
		})
	}
	return func() { cancel(); group.Wait(); client.CloseIdleConnections() }
}

// readRefused returns the Binds that did not bind, by reason, of metrics in
// Prometheus' text format.
func readRefused(metrics io.Reader) (map[string]int, error) {
	counters, err := read(metrics, decisions)
	if err != nil {
		return nil, fmt.Errorf("the extender's metrics: %w", err)
	}
	out := make(map[string]int)
	for _, c := range counters {
		if c.labels["verb"] == "bind" && c.labels["result"] != "bound" {
			out[c.labels["reason"]] += c.value
		}
	}
	return out, nil
}

// counter is one of a family.
type counter struct {
	labels map[string]string
	value  int
}

// read returns the counters of a family.
func read(metrics io.Reader, name string) (out []counter, err error) {
	parser := expfmt.NewTextParser(prometheus.LegacyValidation)
	families, err := parser.TextToMetricFamilies(metrics)
	if err != nil {
		return nil, err
	}
	family, ok := families[name]
	if !ok {
		return nil, fmt.Errorf("there is no %s", name)
	}
	for _, m := range family.GetMetric() {
		labels := make(map[string]string)
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		out = append(out, counter{labels, int(m.GetCounter().GetValue())})
	}
	return out, nil
}
