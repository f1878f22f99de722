package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// The sides of a comparison of schedulers.
const (
	plain    = "plain"   // kube-scheduler alone
	control  = "control" // the same again
	plugin   = "plugin"  // gpumem-scheduler
	extended = "extender"
	before   = "before" // another gpumem-scheduler
)

// The processes that bench starts and ends.
const (
	schedulerProcess = "scheduler"
	extenderProcess  = "extender"
)

const (
	warmUp    = 50  // pods that open connections
	worstPods = 200 // of each worst case
)

// bench is a control plane without a scheduler.
type bench struct {
	options
	cluster  *cluster.Cluster
	client   kubernetes.Interface
	built    *stack.Stack
	settings map[string]stack.SchedulerSettings // by mode of the chart
	nodes    int
	batches  int
}

// withBench starts a control plane, lets work run on it, and removes it.
func withBench(ctx context.Context, opts options, work func(*bench) error) error {
	config := cluster.Config{Name: "load", NoScheduler: true, Log: opts.log}
	return stack.With(ctx, config, func(c *cluster.Cluster, built *stack.Stack) error {
		b := &bench{options: opts, cluster: c, built: built, settings: make(map[string]stack.SchedulerSettings)}
		rest, err := c.RESTConfig()
		if err != nil {
			return err
		}
		rest.ContentType = runtime.ContentTypeProtobuf
		if b.client, err = kubernetes.NewForConfig(rest); err != nil {
			return err
		}
		for _, mode := range []string{extended, plugin} {
			if b.settings[mode], err = built.SchedulerSettings(ctx, c, mode); err != nil {
				return err
			}
		}
		if _, err := c.MakeNamespace(ctx, namespace); err != nil {
			return err
		}
		// The controllers would taint nodes without a kubelet.
		if err := c.Kill(ctx, "controller-manager"); err != nil {
			return err
		}
		return work(b)
	})
}

// clusters compares the schedulers for each size of the fleet.
func clusters(ctx context.Context, opts options, r *report) error {
	return withBench(ctx, opts, func(b *bench) error {
		for _, nodes := range opts.nodes {
			if err := b.grow(ctx, nodes); err != nil {
				return err
			}
			sides := []string{plain, control, plugin, extended}
			if err := r.compare(ctx, fmt.Sprintf("-%d", nodes), sides, sides[:2], opts.rounds, b.burst); err != nil {
				return err
			}
		}
		return nil
	})
}

// grow adds nodes until the fleet has n of them.
func (b *bench) grow(ctx context.Context, n int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := b.nodes; i < n; i++ {
		group.Go(func() error { return b.addNode(ctx, fleetNode(i)) })
	}
	b.nodes = n
	return group.Wait()
}

func (b *bench) addNode(ctx context.Context, node *v1.Node) error {
	_, err := b.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	return err
}

// with runs work while the processes of a side run.
func (b *bench) with(ctx context.Context, side string, work func(processes []string) error) (err error) {
	processes, err := b.start(ctx, side)
	defer func() {
		for _, name := range processes {
			err = errors.Join(err, b.cluster.Kill(ctx, name))
		}
	}()
	if err != nil {
		return err
	}
	warm := b.batch(warmUp, bound, func(i int) *v1.Pod { return b.mixedPod(i) })
	if _, _, err := warm.run(ctx); err != nil {
		return err
	}
	if err := warm.clear(ctx); err != nil {
		return err
	}
	return work(processes)
}

// start starts the scheduler of a side, and before it the extender if the side has one.
func (b *bench) start(ctx context.Context, side string) (started []string, err error) {
	settings, program := b.settings[plugin], []string{b.built.Binary("gpumem-scheduler")}
	var change []func(map[string]any)
	switch side {
	case before:
		program = []string{b.before}
	case plain, control, extended:
		kube, err := b.cluster.Scheduler(ctx)
		if err != nil {
			return nil, err
		}
		settings, program = b.settings[extended], []string{kube}
		if side != extended {
			change = append(change, settings.Plain)
			break
		}
		if err := b.cluster.Run(extenderProcess, b.built.Binary("gpumem-extender"), "--choose-node", "--kubeconfig="+b.cluster.SchedulerKubeconfig()); err != nil {
			return nil, err
		}
		started = append(started, extenderProcess)
	}
	config, err := settings.Config(change...)
	if err != nil {
		return started, err
	}
	if err := b.cluster.StartScheduler(config, program...); err != nil {
		return started, err
	}
	return append(started, schedulerProcess), nil
}

func (b *bench) batch(pods int, done func(*v1.Pod) bool, pod func(i int) *v1.Pod) *batch {
	out := &batch{client: b.client, done: done}
	for i := range pods {
		out.pods = append(out.pods, pod(i))
	}
	return out
}

func (b *bench) mixedPod(i int) *v1.Pod { return b.pod(i, sizes[i%len(sizes)]) }

// pod returns a pod whose name no earlier batch had.
func (b *bench) pod(i int, units int64) *v1.Pod {
	if i == 0 {
		b.batches++
	}
	return fleetPod(namespace, fmt.Sprintf("batch-%d", b.batches), i, units)
}

// burst measures one round: pods of mixed sizes, all created at once.
func (b *bench) burst(ctx context.Context, side string) (m metrics, err error) {
	err = b.with(ctx, side, func(processes []string) error {
		burst := b.batch(b.pods, bound, b.mixedPod)
		requests, refusals, err := b.counts(ctx, side)
		if err != nil {
			return err
		}
		spent, err := b.processorTimes(processes)
		if err != nil {
			return err
		}
		took, waits, err := burst.run(ctx)
		if err != nil {
			return err
		}
		after, err := b.processorTimes(processes)
		if err != nil {
			return err
		}
		moreRequests, moreRefusals, err := b.counts(ctx, side)
		if err != nil {
			return err
		}
		n := float64(b.pods)
		m = metrics{
			"pods-per-second": n / took.Seconds(), "requests per pod": (moreRequests - requests) / n,
			"burst-p99 s": quantile(waits, 0.99).Seconds(), "longest-wait s": waits[len(waits)-1].Seconds(),
		}
		if side == plugin || side == extended {
			m["refused-binds %"] = 100 * (moreRefusals - refusals) / n
		}
		for name, total := range after {
			perPod := (total - spent[name]).Seconds() * 1000 / n
			m["cpu-"+name+" ms/pod"] = perPod
			m["cpu-all ms/pod"] += perPod
		}
		for _, name := range processes {
			pid, _ := b.cluster.Running(name)
			peak, err := cluster.PeakMemory(pid)
			if err != nil {
				return err
			}
			m["memory MiB"] += peak
		}
		return burst.clear(ctx)
	})
	return m, err
}

// counts reads how many requests the API server has answered and how many Binds gpumem has refused.
func (b *bench) counts(ctx context.Context, side string) (requests, refusals float64, err error) {
	text, err := b.client.Discovery().RESTClient().Get().AbsPath("/metrics").SetHeader("Accept", "text/plain").DoRaw(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("read the API server's metrics: %w", err)
	}
	requests = sum(string(text), "apiserver_request_total", func(labels string) bool { return !strings.Contains(labels, `verb="WATCH"`) })
	if side != plugin && side != extended {
		return requests, 0, nil
	}
	client := http.Client{Transport: &http.Transport{DialContext: b.cluster.DialBesideControlPlane, DisableKeepAlives: true}}
	text, err = get(ctx, &client, "http://127.0.0.1:8011/metrics")
	refusals = sum(string(text), "gpumem_extender_decisions_total", func(labels string) bool {
		return strings.Contains(labels, `verb="bind"`) && !strings.Contains(labels, `result="bound"`)
	})
	return requests, refusals, err
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}

// sum adds up a metric in Prometheus' text format, over the series with labels that match.
func sum(text, name string, matches func(labels string) bool) (total float64) {
	for line := range strings.Lines(text) {
		labels, ok := strings.CutPrefix(line, name)
		if i := strings.LastIndexByte(labels, ' '); ok && i >= 0 && (labels[0] == '{' || labels[0] == ' ') && matches(labels[:i]) {
			value, err := strconv.ParseFloat(strings.TrimSpace(labels[i:]), 64)
			if err == nil {
				total += value
			}
		}
	}
	return total
}

// processorTimes returns the processor time of the named processes, of the API server and of etcd.
func (b *bench) processorTimes(names []string) (map[string]time.Duration, error) {
	out := make(map[string]time.Duration)
	for _, name := range append([]string{"apiserver", "etcd"}, names...) {
		pid, running := b.cluster.Running(name)
		if !running {
			return nil, fmt.Errorf("%s has ended; see %s", name, b.cluster.LogFile(name))
		}
		spent, err := processorTime(pid)
		if err != nil {
			return nil, fmt.Errorf("processor time of %s: %w", name, err)
		}
		out[name] = spent
	}
	return out, nil
}

// processorTime returns the processor time of a process by its clock, clock_getcpuclockid(3), which is
// finer than the ticks in /proc.
func processorTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|2), &t)
	return time.Duration(t.Nano()), err
}

// worstCases compares gpumem-scheduler with another one where its index helps least.
func worstCases(ctx context.Context, opts options, r *report) error {
	return withBench(ctx, opts, func(b *bench) error {
		if err := b.grow(ctx, slices.Max(opts.nodes)); err != nil {
			return err
		}
		if err := b.addNode(ctx, newNode("gpu-node-largest", b.nodes, largest)); err != nil {
			return err
		}
		sides := []string{plugin}
		if opts.before != "" {
			sides = append(sides, before)
		}
		return r.compare(ctx, "", sides, []string{before}, opts.rounds, b.worst)
	})
}

// worst measures the scheduler's processor time per pod in each worst case.
func (b *bench) worst(ctx context.Context, side string) (metrics, error) {
	m := make(metrics)
	err := b.with(ctx, side, func(processes []string) error {
		for _, c := range []struct {
			name string
			at   int // pods at once
			done func(*v1.Pod) bool
			pod  func(i int) *v1.Pod
		}{
			{"hints-fail", worstPods, refused, func(i int) *v1.Pod { // GPUs fit, and no node has the label
				p := b.pod(i, 3)
				p.Spec.NodeSelector = map[string]string{"load.gpumem.dev/none": "true"}
				return p
			}},
			{"no-node-fits", worstPods, refused, func(i int) *v1.Pod { return b.pod(i, 2*largeUnits) }},
			{"one-node-fits", gpusPerNode, bound, func(i int) *v1.Pod { return b.pod(i, largeUnits) }},
		} {
			var spent time.Duration
			for range worstPods / c.at {
				before, err := b.processorTimes(processes)
				if err != nil {
					return err
				}
				pods := b.batch(c.at, c.done, c.pod)
				if _, _, err := pods.run(ctx); err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
				after, err := b.processorTimes(processes)
				if err != nil {
					return err
				}
				spent += after[schedulerProcess] - before[schedulerProcess]
				if err := pods.clear(ctx); err != nil {
					return err
				}
			}
			m[c.name+" ms/pod"] = spent.Seconds() * 1000 / worstPods
		}
		return nil
	})
	return m, err
}
