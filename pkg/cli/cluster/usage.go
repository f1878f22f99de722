package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpumem/gpumem/pkg/report/boundedhttp"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/printers"
)

// Metrics of the device plugin that Usage reads.
const (
	containerUsed = "gpumem_device_plugin_container_memory_used_bytes"
	containerPeak = "gpumem_device_plugin_container_memory_peak_bytes"
	containerSM   = "gpumem_device_plugin_container_sm_utilization_ratio"
	serverMemory  = "gpumem_device_plugin_mps_server_memory_bytes"
)

// Usage is the usage of GPUs and pods. Each device plugin has measured the usage on its own node.
type Usage struct {
	GPUs     map[printers.UsageKey]printers.Usage
	Pods     map[printers.UsageKey]printers.Usage
	Problems []inspect.Problem
	Denied   bool // the user may not read the metrics of device plugins
}

var errDenied = errors.New("reading the metrics of device plugins requires the right to get pods/proxy")

// RecordedUsage returns the usage that a pod's annotations record. The result ok is false if they record none.
func (r *Reader) RecordedUsage(pod *v1.Pod) (key printers.UsageKey, usage printers.Usage, ok bool) {
	use, ok := r.Names.ParseUsage(pod)
	return printers.UsageKey{Node: pod.Spec.NodeName, Name: pod.Namespace + "/" + pod.Name}, printers.Usage{UsedMiB: use.UsedMiB, PeakMiB: &use.PeakMiB}, ok
}

// MaxListed is the maximum number of problems in an answer, and of nodes in one problem.
const MaxListed = 20

// Usage reads the metrics of the device plugins on these nodes, or on all nodes if none is given,
// through the proxy of the API server.
func (r *Reader) Usage(ctx context.Context, nodes ...string) Usage {
	out := Usage{GPUs: make(map[printers.UsageKey]printers.Usage), Pods: make(map[printers.UsageKey]printers.Usage)}
	plugins, err := r.Plugins(ctx)
	if err != nil {
		out.Problems = append(out.Problems, inspect.Problem{Object: "device plugins", Message: OneLine(err)})
		out.Denied = apierrors.IsForbidden(err)
		return out
	}
	var mu sync.Mutex
	var unreadNodes []string
	var lastErr error
	var group errgroup.Group
	group.SetLimit(boundedhttp.AtOnce)
	for _, plugin := range plugins {
		if len(nodes) > 0 && !slices.Contains(nodes, plugin.Spec.NodeName) {
			continue
		}
		group.Go(func() error {
			families, err := r.readMetrics(ctx, &plugin)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				unreadNodes, lastErr = append(unreadNodes, plugin.Spec.NodeName), err
				return nil
			}
			out.add(plugin.Spec.NodeName, families)
			return nil
		})
	}
	_ = group.Wait() // the goroutines record errors in unreadNodes
	if len(unreadNodes) > 0 {
		out.Denied = errors.Is(lastErr, errDenied)
		slices.Sort(unreadNodes)
		out.Problems = append(out.Problems, inspect.Problem{
			Object: "usage on " + strings.Join(unreadNodes[:min(len(unreadNodes), MaxListed)], ", "), Message: OneLine(lastErr),
		})
	}
	return out
}

// metricsTimeout is the time limit for the response of one device plugin. The API server's proxy has no time limit.
const metricsTimeout = 5 * time.Second

func (r *Reader) readMetrics(ctx context.Context, pod *v1.Pod) (map[string]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	port := ""
	if n := boundedhttp.ProbesPort(pod); n != 0 {
		port = fmt.Sprint(n)
	}
	answer, err := r.Client.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, port, "/metrics", nil).Stream(ctx)
	if apierrors.IsForbidden(err) { // the client drops the API server's message
		return nil, fmt.Errorf("%w in namespace %s", errDenied, pod.Namespace)
	}
	var text []byte
	if err == nil {
		defer answer.Close()
		text, err = boundedhttp.Read(answer)
	}
	switch {
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("read the metrics of pod %s/%s: no answer within %s", pod.Namespace, pod.Name, metricsTimeout)
	case err != nil:
		return nil, fmt.Errorf("read the metrics of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return boundedhttp.Metrics(text)
}

// add adds the metrics of a node's plugin. The usage of a pod is the sum over its containers and GPUs. The pod's
// share of GPU time is unknown if the metrics lack the share of one of its containers on one of its GPUs.
func (u *Usage) add(node string, families map[string]*dto.MetricFamily) {
	const mib = 1 << 20
	each := func(name string, f func(labels map[string]string, value float64)) {
		for _, m := range families[name].GetMetric() {
			f(boundedhttp.Labels(m), m.GetGauge().GetValue())
		}
	}
	each(boundedhttp.GPUUsed, func(labels map[string]string, used float64) {
		u.GPUs[printers.UsageKey{Node: node, Name: labels["uuid"]}] = printers.Usage{UsedMiB: int64(used / mib)}
	})
	eachPod := func(name string, f func(key printers.UsageKey, pod *printers.Usage, value float64)) {
		each(name, func(labels map[string]string, value float64) {
			key := printers.UsageKey{Node: node, Name: labels["namespace"] + "/" + labels["pod"]}
			pod := u.Pods[key]
			f(key, &pod, value)
			u.Pods[key] = pod
		})
	}
	each(serverMemory, func(labels map[string]string, used float64) {
		u.Problems = append(u.Problems, inspect.Problem{
			Object: "usage on " + node, Message: fmt.Sprintf("NVML counts %d MiB of MPS clients on GPU %s as memory of the MPS server: the usage of pods with MPS on this GPU is too low", int64(used/mib), labels["uuid"]),
		})
	})
	unknown := make(map[printers.UsageKey]int) // by pod: number of pairs of container and GPU without a share of GPU time
	eachPod(containerUsed, func(key printers.UsageKey, pod *printers.Usage, used float64) {
		pod.UsedMiB += int64(used / mib)
		unknown[key]++
	})
	eachPod(containerSM, func(key printers.UsageKey, pod *printers.Usage, share float64) {
		if pod.SM == nil {
			pod.SM = new(int)
		}
		*pod.SM += int(math.Round(share * 100))
		unknown[key]--
	})
	for name, n := range unknown {
		if pod := u.Pods[name]; n != 0 {
			pod.SM = nil
			u.Pods[name] = pod
		}
	}
	eachPod(containerPeak, func(_ printers.UsageKey, pod *printers.Usage, peak float64) {
		if pod.PeakMiB == nil {
			pod.PeakMiB = new(int64)
		}
		*pod.PeakMiB += int64(peak / mib)
	})
}
