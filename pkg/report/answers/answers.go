// Package answers reads what gpumem's own pods serve, over whatever way they are reached: the
// command line goes through the API server, and the page's process to the pods' addresses.
//
// An answer is read up to a bound, whatever the pod sends.
package answers

import (
	"bytes"
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
)

// Plugins is the label selector of device plugins, whatever the release is called.
const Plugins = "app.kubernetes.io/part-of=gpumem,app.kubernetes.io/component=device-plugin"

// GPUUsed is the device plugin's metric of the memory of a GPU that is in use, in bytes, with the
// label uuid.
const GPUUsed = "gpumem_device_plugin_gpu_memory_used_bytes"

// Max bounds an answer, in bytes. The largest are some hundred KiB.
const Max = 4 << 20

// AtOnce is how many pods are asked at a time.
const AtOnce = 32

// Read reads an answer.
func Read(from io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, Max+1))
	if err == nil && len(text) > Max {
		err = fmt.Errorf("the answer exceeds %d MiB", Max>>20)
	}
	return text, err
}

// Metrics returns families of metrics by name, of an answer in Prometheus' text format.
func Metrics(text []byte) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(bytes.NewReader(text))
}

// Labels returns the labels of a metric by name.
func Labels(m *dto.Metric) map[string]string {
	labels := make(map[string]string)
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

// ProbesPort returns the port with a device plugin's probes and metrics; 0: there is none.
func ProbesPort(plugin *v1.Pod) int32 {
	for _, containers := range [][]v1.Container{plugin.Spec.InitContainers, plugin.Spec.Containers} {
		for _, c := range containers {
			for _, p := range c.Ports {
				if p.Name == "probes" {
					return p.ContainerPort
				}
			}
		}
	}
	return 0
}
