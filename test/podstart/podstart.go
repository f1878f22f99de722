package podstart

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

// Config says what to measure.
type Config struct {
	Pods     int           // with GPU memory, with a resource of an idle plugin, and without either
	Restarts int           // of the kubelet
	Rest     time.Duration // that the device plugin is looked at, with nothing going on
	Log      io.Writer
}

const (
	node      = "node1"
	kubelet   = "kubelet@" + node
	namespace = "default"
	plugin    = "gpumem-device-plugin"
	gpuMem    = "gpumem.dev/gpu-mem"
	idleOnes  = "idle.test/devices"
	scheduler = "gpumem-scheduler"

	// patience is how long one step may take.
	patience = 2 * time.Minute
)

// Run starts a cluster, measures, and takes it away.
func Run(ctx context.Context, config Config) (report Report, err error) {
	machine, err := stack.Node(node, fakenvml.A100_80GB("a"), fakenvml.T4("b"))
	if err != nil {
		return Report{}, err
	}
	err = stack.With(ctx, cluster.Config{Name: "podstart", Nodes: []cluster.Node{machine}, Log: config.Log}, func(c *cluster.Cluster, built *stack.Stack) error {
		b := &bench{Config: config, cluster: c, client: c.Client()}
		if err := built.LoadImages(ctx, c); err != nil {
			return err
		}
		if _, err := built.Install(ctx, c, "scheduler.replicas=1"); err != nil {
			return err
		}
		for _, measure := range []func(context.Context, *Report) error{b.pods, b.rest, b.restarts} {
			if err := measure(ctx, &report); err != nil {
				return err
			}
		}
		return nil
	})
	return report, err
}

type bench struct {
	Config
	cluster *cluster.Cluster
	client  kubernetes.Interface
}

// pods starts pods of each kind by turns.
func (b *bench) pods(ctx context.Context, report *Report) error {
	stop, err := b.cluster.ServeDevicePlugin(ctx, node, idleOnes, idle{})
	if err != nil {
		return err
	}
	defer stop()
	kinds := []struct {
		name, resource string
		took           *[]float64
	}{
		{"with-gpu-memory", gpuMem, &report.With},
		{"with-an-idle-plugin", idleOnes, &report.Idle},
		{"without", "", &report.Without},
	}
	for i := range b.Pods + 1 {
		for _, kind := range kinds {
			if err := b.offered(ctx, kind.resource); err != nil {
				return err
			}
			took, err := b.start(ctx, fmt.Sprintf("%s-%d", kind.name, i), kind.resource)
			if err != nil {
				return err
			}
			fmt.Fprintf(b.Log, "pod start %s: %s\n", kind.name, took.Round(time.Millisecond))
			if i > 0 { // the first start finds nothing in memory
				*kind.took = append(*kind.took, took.Seconds())
			}
		}
	}
	return nil
}

// offered waits until the node has a resource for pods.
func (b *bench) offered(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	return stack.Eventually(ctx, patience, node+" offers "+name, func(ctx context.Context) (bool, string) {
		n, err := b.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		units := n.Status.Allocatable[v1.ResourceName(name)]
		return !units.IsZero(), units.String()
	})
}

// start runs a pod that asks for one of a resource or for none, returns how long
// it took from its binding until it ran, and takes it away.
func (b *bench) start(ctx context.Context, name, asked string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("pod %s did not start in time", name))
	defer cancel()
	pods := b.client.CoreV1().Pods(namespace)
	grace := int64(0)
	container := stack.SampleContainer("main", 0)
	if asked != "" {
		container.Resources.Limits = v1.ResourceList{v1.ResourceName(asked): resource.MustParse("1")}
	}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			SchedulerName: scheduler, TerminationGracePeriodSeconds: &grace,
			Containers: []v1.Container{container},
		},
	}
	created, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	bound, err := b.await(ctx, created, func(p *v1.Pod) bool { return p != nil && p.Spec.NodeName != "" })
	if err != nil {
		return 0, err
	}
	running, err := b.await(ctx, created, func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodRunning })
	if err != nil {
		return 0, err
	}
	if err := pods.Delete(ctx, name, *metav1.NewDeleteOptions(0)); err != nil {
		return 0, err
	}
	_, err = b.await(ctx, created, func(p *v1.Pod) bool { return p == nil })
	return running.Sub(bound), err
}

// await waits for something of a pod from its creation on, or for its end (nil),
// and returns when that was heard of.
func (b *bench) await(ctx context.Context, created *v1.Pod, so func(*v1.Pod) bool) (time.Time, error) {
	events, err := b.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{
		ResourceVersion: created.ResourceVersion,
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", created.Name).String(),
	})
	if err != nil {
		return time.Time{}, err
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		pod, _ := event.Object.(*v1.Pod)
		if event.Type == watch.Deleted {
			pod = nil
		}
		if so(pod) {
			return time.Now(), nil
		}
	}
	return time.Time{}, fmt.Errorf("the watch of pod %s has ended: %w", created.Name, context.Cause(ctx))
}

// rest looks at the device plugin for a while in which nothing happens.
func (b *bench) rest(ctx context.Context, report *Report) error {
	processes, err := b.cluster.ContainerProcesses(plugin)
	if err != nil {
		return err
	}
	if len(processes) == 0 {
		return fmt.Errorf("no process runs %s", plugin)
	}
	pid := processes[0].PID
	before, err := cluster.ProcessorTime(pid)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(b.Rest):
	}
	after, err := cluster.ProcessorTime(pid)
	if err != nil {
		return err
	}
	report.Cores = (after - before).Seconds() / b.Rest.Seconds()
	report.MemoryMiB, err = cluster.ResidentMemory(pid)
	return err
}

// restarts restarts the kubelet, and reads from its log how soon the device
// plugin was back.
func (b *bench) restarts(ctx context.Context, report *Report) error {
	for range b.Restarts {
		file := b.cluster.LogFile(kubelet)
		known, err := os.Stat(file)
		if err != nil {
			return err
		}
		if err := b.cluster.Restart(ctx, kubelet); err != nil {
			return err
		}
		var took time.Duration
		err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(context.Context) (bool, error) {
			log, err := os.ReadFile(file)
			if err != nil {
				return false, err
			}
			var back bool
			took, back = comeback(log[known.Size():], gpuMem)
			return back, nil
		})
		if err != nil {
			return fmt.Errorf("wait for the device plugin after a restart of the kubelet, see %s: %w", file, err)
		}
		fmt.Fprintf(b.Log, "kubelet restarted: the device plugin was back after %s\n", took)
		report.Comebacks = append(report.Comebacks, took.Seconds())
	}
	return nil
}
