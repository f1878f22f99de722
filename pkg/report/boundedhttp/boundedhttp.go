// Package boundedhttp reads responses of gpumem's own pods. It does not connect: the command line reads through the
// API server, and gpumem's scheduler reads from the pods' addresses.
//
// The package limits the size of a response, whatever the pod sends.
package boundedhttp

import (
	"bytes"
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
)

// Plugins is the label selector of the device plugin's pods, of all Helm releases.
const Plugins = "app.kubernetes.io/part-of=gpumem,app.kubernetes.io/component=device-plugin"

// GPUUsed is the device plugin's metric of used GPU memory, in bytes. Its label uuid identifies the GPU.
const GPUUsed = "gpumem_device_plugin_gpu_memory_used_bytes"

// Max is the maximum size of a response in bytes. The largest responses have a few hundred KiB.
const Max = 4 << 20

// AtOnce is the maximum number of concurrent requests to pods.
const AtOnce = 32

// Read reads a response. It returns an error if the response exceeds Max.
func Read(reader io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(reader, Max+1))
	if err == nil && len(text) > Max {
		err = fmt.Errorf("the answer exceeds %d MiB", Max>>20)
	}
	return text, err
}

// Metrics parses Prometheus' text format and returns the metric families by name.
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

// ProbesPort returns the port of a device plugin's probes and metrics; 0 if there is none.
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
