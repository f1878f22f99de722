package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

const (
	replicas = 2 // of the scheduler
	// schedulerVerbosity logs each change of a pod that kube-scheduler receives.
	schedulerVerbosity = 4
	callTimeout        = 5 * time.Second // of every call: the other side may be dead
	endTimeout         = 2 * time.Minute // to save the logs and to remove the cluster
)

// A bench is a cluster with gpumem, and what observes it.
type bench struct {
	cluster *cluster.Cluster
	stack   *stack.Stack
	client  kubernetes.Interface
	gpus    []gpu
	answers map[string]*cluster.Answers // of the kubelets about PodResources, by node
	seed    uint64
	log     io.Writer

	journal *journal
	tracker *tracker
	watcher *watcher
}

// run starts a cluster with these nodes, runs work on it, and removes it. It returns the report, which fails
// if a promise was broken.
func run(ctx context.Context, seed uint64, log io.Writer, nodes []cluster.Node, work func(context.Context, *bench) error) (text string, err error) {
	b := &bench{seed: seed, log: log, journal: &journal{}}
	defer func() {
		if b.cluster == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		if err != nil {
			b.stack.SaveLogs(ctx, b.cluster, namespace)
		}
		for _, a := range b.answers {
			a.Close()
		}
		err = errors.Join(err, b.cluster.Stop(ctx))
	}()
	if err := b.start(ctx, nodes); err != nil {
		return "", err
	}
	watching, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	if err := b.tracker.start(watching, b.client); err != nil {
		return "", err
	}
	group.Go(func() { b.watcher.run(watching) })
	err = work(ctx, b)
	text, broken := b.watcher.report()
	return text, errors.Join(err, broken)
}

func (b *bench) start(ctx context.Context, nodes []cluster.Node) (err error) {
	if b.stack, err = stack.Build(ctx, "chaos", b.log); err != nil {
		return err
	}
	for i := range nodes {
		// By default the kubelet would soon wait five minutes before it starts a killed container.
		nodes[i].Kubelet = []byte("crashLoopBackOff: {maxContainerRestartPeriod: 2s}\n")
	}
	if b.cluster, err = cluster.Start(ctx, cluster.Config{Name: "chaos", Nodes: nodes, Log: b.log}); err != nil {
		return err
	}
	b.client = b.cluster.Client()
	if err := b.install(ctx); err != nil {
		return err
	}
	b.tracker = newTracker(b.journal)
	b.watcher = &watcher{bench: b, known: make(map[string]bool)}
	return nil
}

// install installs gpumem, and waits until the inventory of each node is published.
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
	_, err = b.client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "tenant"}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return stack.Eventually(ctx, time.Minute, "the inventory of each node is published", func(ctx context.Context) (bool, string) {
		nodes, err := b.listNodes(ctx)
		b.gpus = gpusOf(nodes)
		return err == nil, fmt.Sprint(err)
	})
}

// nodesWith returns nodes with GPUs: the models of each node, in order.
func nodesWith(models ...[]func(string) fakenvml.GPU) (out []cluster.Node, err error) {
	for i, of := range models {
		name := fmt.Sprintf("node%d", i+1)
		var gpus []fakenvml.GPU
		for j, model := range of {
			gpus = append(gpus, model(fmt.Sprintf("%s-%d", name, j)))
		}
		node, err := stack.Node(name, gpus...)
		if err != nil {
			return nil, err
		}
		out = append(out, node)
	}
	return out, nil
}

// killContainers kills processes that run a program in containers, which the kubelets start again. pick
// chooses them; nil: all.
func (b *bench) killContainers(program string, pick func([]cluster.ContainerProcess) []cluster.ContainerProcess) error {
	processes, err := b.cluster.ContainerProcesses(program)
	if err != nil {
		return err
	}
	if pick != nil {
		processes = pick(processes)
	}
	for _, p := range processes {
		// A container has the name of its program.
		if err := stack.KeepContainerLogs(b.cluster, p.Node, program); err != nil {
			return err
		}
		if err := p.Signal(syscall.SIGKILL); err != nil {
			return err
		}
		b.journal.add("", "kill -9 %s on %s", program, p.Node)
	}
	return nil
}

// settle polls until look returns nothing. It gives up when look has returned the same for three minutes, and
// returns that.
func settle(ctx context.Context, look func(context.Context) string) (left string, err error) {
	changed := time.Now()
	for ; ctx.Err() == nil; sleep(ctx, time.Second) {
		now := look(ctx)
		if now != left {
			left, changed = now, time.Now()
		}
		if left == "" || time.Since(changed) > 3*time.Minute {
			return left, nil
		}
	}
	return left, context.Cause(ctx)
}

// sleep waits for a time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
