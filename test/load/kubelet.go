package load

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

const (
	node      = "node1"
	kubelet   = "kubelet@" + node
	idleOnes  = "idle.test/devices"
	without   = "without"
	kubeletNS = "default"
	patience  = 2 * time.Minute // for one step

	startsPerRound = 4
	restarts       = 3
)

// The kinds of pods, and the resource that each requests. An idle device plugin decides nothing: the
// time that it adds is the kubelet's own.
var requested = map[string]v1.ResourceName{"gpu": gpuMem, "idle": idleOnes, without: ""}

// kubeletStarts measures one node with a real kubelet: the start of a pod from its binding until it
// runs, the device plugin at rest, and its registration after a restart of the kubelet.
func kubeletStarts(ctx context.Context, opts options, r *report) error {
	machine, err := stack.Node(node, fakenvml.A100_80GB("a"), fakenvml.T4("b"))
	if err != nil {
		return err
	}
	config := cluster.Config{Name: "load-kubelet", Nodes: []cluster.Node{machine}, Log: opts.log}
	return stack.With(ctx, config, func(c *cluster.Cluster, built *stack.Stack) error {
		if err := built.LoadImages(ctx, c); err != nil {
			return err
		}
		if _, err := built.Install(ctx, c, "scheduler.replicas=1"); err != nil {
			return err
		}
		if err := podStarts(ctx, c, opts.rounds, r); err != nil {
			return err
		}
		if err := rest(ctx, c, opts.rest, r); err != nil {
			return err
		}
		return comebacks(ctx, c, r)
	})
}

func podStarts(ctx context.Context, c *cluster.Cluster, rounds int, r *report) error {
	stop, err := c.ServeDevicePlugin(ctx, node, idleOnes, idle{})
	if err != nil {
		return err
	}
	defer stop()
	for _, name := range requested {
		if err := offered(ctx, c.Client(), name); err != nil {
			return err
		}
	}
	pods := 0
	return r.compare(ctx, "-pod-start", []string{without, "gpu", "idle"}, []string{without}, rounds, func(ctx context.Context, kind string) (metrics, error) {
		var total time.Duration
		for i := range startsPerRound + 1 {
			pods++
			took, err := startPod(ctx, c.Client(), fmt.Sprintf("%s-%d", kind, pods), requested[kind])
			if err != nil {
				return nil, err
			}
			if i > 0 { // the first start of a kind reads files that later ones find in memory
				total += took
			}
		}
		return metrics{" s": total.Seconds() / startsPerRound}, nil
	})
}

// offered waits until the node has a resource for pods.
func offered(ctx context.Context, client kubernetes.Interface, name v1.ResourceName) error {
	return stack.Eventually(ctx, patience, node+" offers "+string(name), func(ctx context.Context) (bool, string) {
		n, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		units := n.Status.Allocatable[name]
		return name == "" || !units.IsZero(), units.String()
	})
}

// startPod runs a pod, returns the time from its binding until it ran, and deletes it.
func startPod(ctx context.Context, client kubernetes.Interface, name string, request v1.ResourceName) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("pod %s did not start in time", name))
	defer cancel()
	container := stack.SampleContainer("main", 0)
	if request != "" {
		container.Resources.Limits = v1.ResourceList{request: resource.MustParse("1")}
	}
	pods := client.CoreV1().Pods(kubeletNS)
	created, err := pods.Create(ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PodSpec{SchedulerName: "gpumem-scheduler", TerminationGracePeriodSeconds: new(int64), Containers: []v1.Container{container}},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	events, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: created.ResourceVersion, FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return 0, err
	}
	defer events.Stop()
	var boundAt, runningAt time.Time
	for event := range events.ResultChan() {
		pod, ok := event.Object.(*v1.Pod)
		switch {
		case event.Type == watch.Deleted:
			return runningAt.Sub(boundAt), nil
		case ok && boundAt.IsZero() && bound(pod):
			boundAt = time.Now()
		case ok && runningAt.IsZero() && pod.Status.Phase == v1.PodRunning:
			runningAt = time.Now()
			if err := pods.Delete(ctx, name, *metav1.NewDeleteOptions(0)); err != nil {
				return 0, err
			}
		}
	}
	return 0, fmt.Errorf("the watch of pod %s has ended: %w", name, context.Cause(ctx))
}

// rest measures the device plugin while nothing happens.
func rest(ctx context.Context, c *cluster.Cluster, duration time.Duration, r *report) error {
	processes, err := c.ContainerProcesses("gpumem-device-plugin")
	if err != nil {
		return err
	}
	if len(processes) == 0 {
		return fmt.Errorf("no device plugin runs on %s", node)
	}
	pid := processes[0].PID
	before, err := processorTime(pid)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
	}
	after, err := processorTime(pid)
	if err != nil {
		return err
	}
	memory, err := cluster.ResidentMemory(pid)
	r.add("rest-cpu", "% of a core", 100*(after-before).Seconds()/duration.Seconds())
	r.add("rest-memory", "MiB", memory)
	return err
}

// comebacks restarts the kubelet and reads from its log when the device plugin has registered again.
func comebacks(ctx context.Context, c *cluster.Cluster, r *report) error {
	var all []float64
	for range restarts {
		file := c.LogFile(kubelet)
		known, err := os.Stat(file)
		if err != nil {
			return err
		}
		if err := c.Restart(ctx, kubelet); err != nil {
			return err
		}
		err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(context.Context) (bool, error) {
			log, err := os.ReadFile(file)
			if err != nil {
				return false, err
			}
			took, back := comeback(log[known.Size():], gpuMem)
			if back {
				all = append(all, took.Seconds())
			}
			return back, nil
		})
		if err != nil {
			return fmt.Errorf("wait for the device plugin after a restart of the kubelet, see %s: %w", file, err)
		}
	}
	r.add("comeback", "s", all...)
	r.add("comeback-max", "s", slices.Max(all))
	return nil
}

// klogTime is the time of a line of klog, in microseconds.
var klogTime = regexp.MustCompile(`^[IWEF]\d{4} (\d{2}:\d{2}:\d{2}\.\d{6})`)

// comeback reads from a kubelet's log how long after the start of its device manager a device plugin
// registered.
func comeback(log []byte, resource string) (took time.Duration, ok bool) {
	var open time.Time
	for line := range bytes.Lines(log) {
		match := klogTime.FindSubmatch(line)
		if match == nil {
			continue
		}
		at, err := time.Parse("15:04:05.000000", string(match[1]))
		if err != nil {
			continue
		}
		switch {
		case bytes.Contains(line, []byte("Creating device plugin manager")):
			open = at
		case bytes.Contains(line, []byte("Got registration request from device plugin")) && bytes.Contains(line, []byte(resource)) && !open.IsZero():
			took = at.Sub(open)
			if took < 0 {
				took += 24 * time.Hour // midnight has passed
			}
			return took, true
		}
	}
	return 0, false
}

// idle is a device plugin that decides nothing.
type idle struct {
	pluginapi.UnimplementedDevicePluginServer
}

// GetDevicePluginOptions implements pluginapi.DevicePluginServer.
func (idle) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// ListAndWatch implements pluginapi.DevicePluginServer.
func (idle) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	return cluster.ListDevices([]string{"a", "b", "c", "d"}, stream)
}

// Allocate implements pluginapi.DevicePluginServer.
func (idle) Allocate(_ context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for range req.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return out, nil
}
