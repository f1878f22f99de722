package throughput

import (
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
	parser := expfmt.NewTextParser(prometheus.LegacyValidation)
	families, err := parser.TextToMetricFamilies(metrics)
	if err != nil {
		return nil, fmt.Errorf("the extender's metrics: %w", err)
	}
	family, ok := families[decisions]
	if !ok {
		return nil, fmt.Errorf("the extender's metrics have no %s", decisions)
	}
	out := make(map[string]int)
	for _, m := range family.GetMetric() {
		labels := make(map[string]string)
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["verb"] == "bind" && labels["result"] != "bound" {
			out[labels["reason"]] += int(m.GetCounter().GetValue())
		}
	}
	return out, nil
}
