package scheduler

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// BenchmarkCycle places pods one after the other on 5,000 nodes and tells the processor
// time of each: of kube-scheduler, what decides and what little there is of an API
// server, together. A processor profile tells them apart (-cpuprofile).
func BenchmarkCycle(b *testing.B) {
	const size = 5000
	for _, fleet := range []struct {
		name  string
		taken int // GPUs of each node on which a pod has 6 of 10 units
		room  bool
	}{
		{name: "GPUs of all nodes have room", taken: 1},
		{name: "one GPU has room", taken: 2, room: true},
	} {
		for _, look := range []struct {
			name   string
			setups []setup
		}{
			{"all nodes", []setup{uncounted}},
			{"a sample", []setup{uncounted, sampling}},
			{"plugin, all nodes", []setup{uncounted, inProcess, allNodes}},
			{"plugin, a sample", []setup{uncounted, inProcess}},
		} {
			if fleet.room && look.name == "a sample" {
				continue // most pods are not bound
			}
			b.Run(fleet.name+"/"+look.name, func(b *testing.B) {
				var objects []runtime.Object
				for i := range size {
					n := node(b, nodeName(i))
					objects = append(objects, n)
					for g := range fleet.taken {
						objects = append(objects, filler(b, n, g))
					}
				}
				c := start(b, objects, look.setups...)
				if fleet.room {
					c.remove(b, fillerName(nodeName(size/2), 1))
				}
				c.placeOne(b, "first") // a turn begins with reads
				before := processorTime(b)
				b.ResetTimer()
				for i := range b.N {
					c.placeOne(b, fmt.Sprint("pod-", i))
				}
				b.StopTimer()
				used := processorTime(b) - before
				b.ReportMetric(float64(used.Microseconds())/1000/float64(b.N), "cpu-ms/pod")
			})
		}
	}
}

// placeOne has a pod placed and takes it away again.
func (c *cluster) placeOne(b *testing.B, name string) {
	b.Helper()
	watch, err := c.CoreV1().Pods(namespace).Watch(b.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: c.now()})
	if err != nil {
		b.Fatal(err)
	}
	defer watch.Stop()
	c.add(b, pod(b, name, 8))
	limit := time.NewTimer(10 * time.Second)
	defer limit.Stop()
	for {
		select {
		case event := <-watch.ResultChan():
			if p, ok := event.Object.(*v1.Pod); ok && p.Spec.NodeName != "" {
				c.remove(b, name)
				c.eventually(b, 10*time.Second, "the extender has heard that it is gone", func() bool {
					_, _, known := c.cache.Where(string(p.UID))
					return !known
				})
				return
			}
		case <-limit.C:
			b.Fatalf("%s is not bound", name)
		}
	}
}

// now returns the resource version that a watch goes on from.
func (c *cluster) now() string {
	c.api.mu.Lock()
	defer c.api.mu.Unlock()
	return fmt.Sprint(c.api.version)
}

// processorTime returns what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
