package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

const (
	// replicas is how many pods of the scheduler there are.
	replicas = 2
	// schedulerVerbosity has kube-scheduler write down each change of a pod that it
	// hears of.
	schedulerVerbosity = 4
	// endTime is how long it may take to save the logs and to take the cluster
	// away.
	endTime = 2 * time.Minute
)

// Config describes what both kinds of runs have in common.
type Config struct {
	Name     string // of the cluster
	Seed     uint64
	KeepLogs bool // also when all is well
	Log      io.Writer
}

// bench is a cluster with gpumem on it, and those who look at it.
type bench struct {
	cluster *cluster.Cluster
	stack   *stack.Stack
	client  kubernetes.Interface
	devices devices
	log     io.Writer
	journal *journal
	tracker *tracker
	watcher *watcher
	answers map[string]*cluster.Answers // of the kubelets, by node
}

// withBench starts a cluster with these nodes, lets work run on it, and takes it
// away. The logs are kept unless work returns that all is well.
func withBench(ctx context.Context, config Config, nodes []cluster.Node, work func(context.Context, *bench) (ok bool, err error)) (err error) {
	b := &bench{log: config.Log, journal: &journal{}}
	ok := false
	defer func() {
		if b.cluster == nil {
			return // it has not been started
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		if !ok || config.KeepLogs {
			b.stack.SaveLogs(ctx, b.cluster, namespace)
		}
		for _, a := range b.answers {
			a.Close()
		}
		err = errors.Join(err, b.cluster.Stop(ctx))
	}()
	if err := b.start(ctx, config, nodes); err != nil {
		return err
	}
	looking, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	if err := b.tracker.start(looking, b.client); err != nil {
		return err
	}
	group.Go(func() { b.watcher.run(looking) })
	ok, err = work(ctx, b)
	return err
}

func (b *bench) start(ctx context.Context, config Config, nodes []cluster.Node) (err error) {
	if b.stack, err = stack.Build(ctx, config.Name, b.log); err != nil {
		return err
	}
	for i := range nodes {
		// A container that is killed often would soon wait five minutes for each
		// new start, and most of the run would test that waiting.
		nodes[i].Kubelet = []byte("crashLoopBackOff: {maxContainerRestartPeriod: 2s}\n")
	}
	if b.cluster, err = cluster.Start(ctx, cluster.Config{Name: config.Name, Nodes: nodes, Log: b.log}); err != nil {
		return err
	}
	b.client = b.cluster.Client()
	if err := b.install(ctx); err != nil {
		return err
	}
	b.tracker = newTracker(b.journal)
	b.watcher = newWatcher(b)
	return nil
}

// progress prints a line now and then.
func (b *bench) progress(ctx context.Context, more func() string) {
	for sleep(ctx, 10*time.Second); ctx.Err() == nil; sleep(ctx, 10*time.Second) {
		c := b.tracker.count()
		fmt.Fprintf(b.log, "pods: %d bound, %d ran, %d refused, %d now; violations %d%s\n", c.bound, c.ran, c.refused, c.exist, b.watcher.count(), more())
	}
}

// install installs gpumem, and waits until each node has told of its GPUs and
// pods can be made.
func (b *bench) install(ctx context.Context) error {
	if err := b.stack.LoadImages(ctx, b.cluster); err != nil {
		return err
	}
	b.answers = make(map[string]*cluster.Answers)
	for _, node := range b.cluster.Nodes() {
		answers, err := b.cluster.RelayAnswersOf(node)
		if err != nil {
			return err
		}
		b.answers[node] = answers
	}
	_, err := b.stack.Install(ctx, b.cluster, fmt.Sprintf("scheduler.replicas=%d", replicas), fmt.Sprintf("scheduler.verbosity=%d", schedulerVerbosity),
		"devicePlugin.kubeletDir="+cluster.RelayedKubeletDir)
	if err != nil {
		return err
	}
	if _, err = b.cluster.MakeNamespace(ctx, namespace); err != nil {
		return err
	}
	return stack.Eventually(ctx, time.Minute, "the GPUs of all nodes are known", func(ctx context.Context) (bool, string) {
		nodes, err := listHosts(ctx, b.client)
		b.devices = nodes.devices()
		return err == nil, fmt.Sprint(err)
	})
}

// mixedNodes returns n nodes with GPUs in three different ways, by turns.
func mixedNodes(n int) ([]cluster.Node, error) {
	var out []cluster.Node
	for i := range n {
		name := fmt.Sprintf("node%d", i+1)
		gpu := func(j int) string { return fmt.Sprintf("%s-%d", name, j) }
		var gpus []fakenvml.GPU
		switch i % 3 {
		case 0:
			gpus = []fakenvml.GPU{fakenvml.T4(gpu(0)), fakenvml.T4(gpu(1))}
		case 1:
			gpus = []fakenvml.GPU{fakenvml.A100_80GB(gpu(0)), fakenvml.T4(gpu(1))}
		default:
			gpus = []fakenvml.GPU{fakenvml.T4(gpu(0)), fakenvml.T4(gpu(1)), fakenvml.T4(gpu(2)), fakenvml.T4(gpu(3))}
		}
		node, err := stack.Node(name, gpus...)
		if err != nil {
			return nil, err
		}
		out = append(out, node)
	}
	return out, nil
}

// healthy waits until the cluster and gpumem's own pods are ready.
func (b *bench) healthy(ctx context.Context) error {
	const patience = 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := b.cluster.WaitReady(ctx); err != nil {
		return err
	}
	return stack.Eventually(ctx, patience, "the parts are up again", func(ctx context.Context) (bool, string) {
		now := b.notReady(ctx)
		return now == "", now
	})
}

// notReady says which of gpumem's pods is not, or nothing.
func (b *bench) notReady(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := b.client.CoreV1().Pods(stack.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, pod := range list.Items {
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
		})
		if !ready {
			return "pod " + pod.Name + " is not ready"
		}
	}
	return ""
}
