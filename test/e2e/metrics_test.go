package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/helm"
	"github.com/gpumem/gpumem/test/monitoring"
	"github.com/gpumem/gpumem/test/stack"
)

// prometheusConfig scrapes the pods that the chart's PodMonitors select, with the labels that
// the Prometheus operator adds to targets, but through the API server: this machine is not in
// the pods' network.
var prometheusConfig = template.Must(template.New("").Parse(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [{{.Rules}}]
scrape_configs:
{{- range $component, $honor := .HonorLabels}}
  - job_name: {{$component}}
    honor_labels: {{$honor}}
    scheme: https
    tls_config: {ca_file: {{$.Dir}}/ca, cert_file: {{$.Dir}}/cert, key_file: {{$.Dir}}/key}
    static_configs:
{{- $plugin := eq $component "device-plugin"}}
{{- range $.Pods}}
{{- if eq (index .Labels "app.kubernetes.io/component") $component}}
      - targets: [{{$.Server}}]
        labels:
          namespace: {{.Namespace}}
          pod: {{.Name}}
          container: {{(index .Spec.Containers 0).Name}}
          __metrics_path__: "/api/v1/namespaces/{{.Namespace}}/pods/{{.Name}}:{{if $plugin}}8012{{else}}8011{{end}}/proxy/metrics"
{{- if $plugin}}
          node: {{.Spec.NodeName}}
{{- end}}
{{- end}}
{{- end}}
{{- end}}
`))

// honorLabels returns the setting honorLabels of the chart's PodMonitors, by the component that
// each selects.
func (e *env) honorLabels() map[string]bool {
	e.Helper()
	out := make(map[string]bool)
	for document := range strings.SplitSeq(helm.Values(e, "monitoring"), "\n---\n") {
		var monitor struct {
			Kind string
			Spec struct {
				Selector            struct{ MatchLabels map[string]string }
				PodMetricsEndpoints []struct{ HonorLabels bool }
			}
		}
		if err := yaml.Unmarshal([]byte(document), &monitor); err != nil {
			e.Fatal(err)
		}
		if monitor.Kind == "PodMonitor" {
			out[monitor.Spec.Selector.MatchLabels["app.kubernetes.io/component"]] = monitor.Spec.PodMetricsEndpoints[0].HonorLabels
		}
	}
	return out
}

// startPrometheus runs one that scrapes the stack, until the test ends.
func (e *env) startPrometheus() *monitoring.Prometheus {
	e.Helper()
	cache, err := cluster.DefaultCacheDir()
	if err != nil {
		e.Fatal(err)
	}
	programs, err := monitoring.Programs(e.ctx, cache)
	if err != nil {
		e.Skip(err)
	}
	access, err := clientcmd.BuildConfigFromFlags("", e.cluster.Kubeconfig())
	if err != nil {
		e.Fatal(err)
	}
	pods, err := e.client.CoreV1().Pods(stack.Namespace).List(e.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=gpumem"})
	if err != nil {
		e.Fatal(err)
	}
	dir := e.TempDir()
	for name, content := range map[string][]byte{"ca": access.CAData, "cert": access.CertData, "key": access.KeyData} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			e.Fatal(err)
		}
	}
	var config bytes.Buffer
	if err := prometheusConfig.Execute(&config, map[string]any{
		"Dir": dir, "Pods": pods.Items, "HonorLabels": e.honorLabels(), "Server": strings.TrimPrefix(access.Host, "https://"),
		"Rules": filepath.Join(suite.stack.Chart(), "files", "rules.yaml"),
	}); err != nil {
		e.Fatal(err)
	}
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, config.Bytes(), 0o600); err != nil {
		e.Fatal(err)
	}
	var log bytes.Buffer
	p, err := monitoring.Start(programs, file, filepath.Join(dir, "data"), &log)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		if err := p.Stop(); err != nil || e.Failed() {
			e.Logf("Prometheus: %v\n%s", err, log.String())
		}
	})
	return p
}

// Every query of the dashboard, and every expression of an alert up to what it is
// compared with, has data from a real Prometheus that scrapes the real cluster.
func TestEveryQueryOfTheDashboardReturnsData(t *testing.T) {
	e := setup(t)
	p := e.startPrometheus()
	m := newMachine(e)
	e.create(e.pod("holds", 5, onNode(m.node)))
	e.create(e.pod("waits", a100+1))
	programs := m.programs(e.running("holds"), 6000) // of 5120
	programs[0].SMUtil = 40
	m.gpu(e.agree("holds", "main")[0]).Processes = programs
	m.setGPUs()
	e.pending("waits")

	chart := suite.stack.Chart()
	dashboard, err := monitoring.ReadDashboard(filepath.Join(chart, "files", "dashboard.json"), "30s")
	if err != nil {
		t.Fatal(err)
	}
	queries := make(map[string]string) // by what they are for
	for _, panel := range dashboard.Panels {
		for i, target := range panel.Targets {
			queries[fmt.Sprintf("panel %q, query %d", panel.Title, i)] = target.Expr
		}
	}
	text, err := os.ReadFile(filepath.Join(chart, "files", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	for _, rule := range rules.Groups[0].Rules {
		for i, side := range strings.Split(strings.ReplaceAll(rule.Expr, " unless ", " and "), " and ") {
			if at := strings.LastIndexAny(side, "=<>"); at >= 0 {
				side = strings.TrimRight(side[:at], "=<> ")
			}
			queries[fmt.Sprintf("alert %s, side %d", rule.Alert, i)] = side
		}
	}
	if len(queries) < 30 {
		t.Errorf("only %d queries: is the dashboard read?", len(queries))
	}
	for what, query := range queries {
		e.eventually(what+" has data", func() (bool, string) {
			samples, err := p.Query(e.ctx, query)
			return err == nil && len(samples) > 0, fmt.Sprintf("%s: %v", query, err)
		})
	}

	for query, want := range map[string]float64{
		`max(gpumem_extender_waiting_pods)`:                                                                        1,
		`sum(max by (uuid) (gpumem_extender_gpu_allocated_bytes)) / 1024^3`:                                        5,
		`sum by (node) (gpumem_device_plugin_gpu_healthy{node="node1"})`:                                           2,
		`sum(max by (uuid) (gpumem_extender_gpu_healthy{node="node1"}))`:                                           2,
		`max by (namespace) (gpumem_extender_namespace_allocated_bytes{namespace="` + e.namespace + `"}) / 1024^3`: 5,
		`count(up{node!=""} == 1)`:                                                                                 4,
		`max(gpumem_extender_nodes)`:                                                                               3, // of four
		`gpumem_device_plugin_container_sm_utilization_ratio{pod="holds"}`:                                         0.4,
		`max(gpumem_extender_waiting_oldest_seconds) > bool 0`:                                                     1,
		`count(ALERTS{alertname="GPUMemoryOverUse",alertstate="pending",pod="holds",container="main"})`:            1,
		`count(count by (node, uuid) (gpumem_device_plugin_gpu_healthy)) > 2`:                                      12,
	} {
		e.eventually(query, func() (bool, string) {
			samples, err := p.Query(e.ctx, query)
			return err == nil && len(samples) == 1 && samples[0].Value == want, fmt.Sprintf("%v %v, want %v", samples, err, want)
		})
	}
	e.eventually("kubectl inspect gpumem top shows use of the GPU's time", func() (bool, string) {
		out, err := suite.stack.Inspect(e.ctx, e.cluster, "top", e.namespace+"/holds", "--no-headers")
		return err == nil && slices.Contains(strings.Fields(out), "40%"), fmt.Sprint(err, out)
	})
}
