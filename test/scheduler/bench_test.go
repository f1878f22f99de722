package scheduler

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/gpumem/gpumem/cmd/gpumem-scheduler/plugin"
	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// BenchmarkBurst creates b.N pods of mixed sizes at once and waits until all of them are bound. It
// reports the processor time of this process for each pod (kube-scheduler, the side that decides about
// GPUs, and the API server in memory), the pods per second and the live heap afterwards. make bench
// runs it with -benchtime 1000x.
func BenchmarkBurst(b *testing.B) {
	for _, nodes := range []int{500, 5000} {
		for _, side := range []struct {
			name  string
			setup setup
		}{{"plain", alone}, {"plugin", inProcess}, {"extender", func(*cluster) {}}} {
			b.Run(fmt.Sprintf("%d/%s", nodes, side.name), func(b *testing.B) {
				if b.N == 1 {
					return // testing runs each benchmark once before it runs it b.N times
				}
				var objects []runtime.Object
				for i := range nodes {
					objects = append(objects, fleetNode(b, i))
				}
				c := start(b, objects, uncounted, side.setup)
				c.burst(b, "warm", 50)
				goruntime.GC()
				before := processorTime(b)
				b.ResetTimer()
				c.burst(b, "pod", b.N)
				b.StopTimer()
				used := processorTime(b) - before
				goruntime.GC()
				var memory goruntime.MemStats
				goruntime.ReadMemStats(&memory)
				b.ReportMetric(float64(used.Microseconds())/1000/float64(b.N), "cpu-ms")
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
				b.ReportMetric(float64(memory.HeapAlloc)/(1<<20), "heap-MiB")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// alone removes gpumem from the configuration.
func alone(c *cluster) {
	inProcess(c)
	c.plain, c.state = true, nil
	ours := func(p config.Plugin) bool { return p.Name == plugin.Name }
	for i := range c.cfg.Profiles {
		p := c.cfg.Profiles[i].Plugins
		p.MultiPoint.Enabled = slices.DeleteFunc(p.MultiPoint.Enabled, ours)
		p.Filter.Enabled = slices.DeleteFunc(p.Filter.Enabled, ours)
		p.Bind, p.PostFilter = config.PluginSet{}, config.PluginSet{}
	}
}

// fleetNode returns the i-th node of a fleet of four models in turn, eight GPUs each.
func fleetNode(b testing.TB, i int) *v1.Node {
	b.Helper()
	models := []struct {
		name  string
		units gpu.Units
	}{{"NVIDIA A100-SXM4-80GB", 79}, {"NVIDIA H100 80GB HBM3", 79}, {"NVIDIA L4", 22}, {"Tesla T4", 14}}
	m, name := models[i%len(models)], nodeName(i)
	var devices []gpu.Device
	for k := range 8 {
		devices = append(devices, gpu.Device{UUID: uuid(name, k), Index: k, Model: m.name, MemoryMiB: int64(m.units+1) * 1024, Allocatable: m.units, NUMANode: -1})
	}
	n := nodeOf(b, name, devices...)
	n.Labels = map[string]string{v1.LabelHostname: name}
	n.Status.Allocatable[v1.ResourceMemory] = resource.MustParse("512Gi")
	n.Status.Allocatable[v1.ResourcePods] = resource.MustParse("250")
	return n
}

// burst creates pods at once and waits until all of them are bound.
func (c *cluster) burst(b *testing.B, name string, pods int) {
	b.Helper()
	sizes := []gpu.Units{3, 5, 8, 10, 16, 20, 40}
	var objects []runtime.Object
	for i := range pods {
		p := pod(b, name+"-"+strconv.Itoa(i), sizes[i%len(sizes)])
		requests := p.Spec.Containers[0].Resources.Requests.DeepCopy()
		requests[v1.ResourceCPU], requests[v1.ResourceMemory] = resource.MustParse("100m"), resource.MustParse("128Mi")
		p.Spec.Containers[0].Resources.Requests = requests
		objects = append(objects, p)
	}
	watch, err := c.CoreV1().Pods(namespace).Watch(b.Context(), metav1.ListOptions{ResourceVersion: c.now()})
	if err != nil {
		b.Fatal(err)
	}
	defer watch.Stop()
	c.add(b, objects...)
	limit := time.NewTimer(5 * time.Minute)
	defer limit.Stop()
	for bound := make(map[string]bool); len(bound) < pods; {
		select {
		case event := <-watch.ResultChan():
			if p, ok := event.Object.(*v1.Pod); ok && p.Spec.NodeName != "" {
				bound[p.Name] = true
			}
		case <-limit.C:
			b.Fatalf("%d of %d pods are bound", len(bound), pods)
		}
	}
}

// now returns the resource version from which a watch continues.
func (c *cluster) now() string {
	c.api.mu.Lock()
	defer c.api.mu.Unlock()
	return fmt.Sprint(c.api.version)
}

// processorTime returns the processor time of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
