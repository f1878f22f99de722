package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

const (
	failoverNodes = 3
	podsPerNode   = 250 // that a kubelet takes: see test/cluster
	bursts        = 4
	burstUnits    = 5 // pods of a burst request 1 to 5 units
	a100Units     = 79
	// leaderTime bounds the wait for another leader, and for its first binding.
	leaderTime = 5 * time.Minute
)

// A failover kills the leader in the first of four bursts of pods. The next leader binds the second burst. It is
// stopped in the third burst, and continues in the fourth, when a third leader has bound a pod.
type failover struct {
	*bench
	pods    int // in all
	created int // by the bursts that have begun
	group   errgroup.Group
}

// runFailover starts a cluster, runs a failover and removes the cluster.
func runFailover(ctx context.Context, c config) (text string, err error) {
	if c.pods < bursts || c.pods > failoverNodes*podsPerNode*9/10 {
		return "", fmt.Errorf("%d pods: want from %d to %d", c.pods, bursts, failoverNodes*podsPerNode*9/10)
	}
	// The pods fill nine tenths of the GPUs, so that a pod that is counted twice finds no room.
	gpus := slices.Repeat([]func(string) fakenvml.GPU{fakenvml.A100_80GB}, c.pods*(1+burstUnits)/2*10/9/a100Units/failoverNodes+1)
	nodes, err := nodesWith(slices.Repeat([][]func(string) fakenvml.GPU{gpus}, failoverNodes)...)
	if err != nil {
		return "", err
	}
	var result string
	text, err = run(ctx, c.seed, c.log, nodes, func(ctx context.Context, b *bench) error {
		fmt.Fprintf(b.log, "failover: seed %d, %d pods, %d nodes with %d GPUs\n", c.seed, c.pods, failoverNodes, len(b.gpus))
		f := &failover{bench: b, pods: c.pods}
		f.group.SetLimit(16)
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			if err := f.replaceLeader(ctx, signal); err != nil {
				return err
			}
		}
		err := errors.Join(f.checkAllRun(ctx), b.checkRest(ctx))
		doubled, stuck := b.watcher.count("I1", "I2"), b.watcher.count("idle", "stuck")
		err = errors.Join(err, b.checkLeaks(ctx))
		result = fmt.Sprintf("result: failover pods=%d doubled=%d stuck=%d violations=%d", c.pods, doubled, stuck, b.watcher.count())
		return err
	})
	return text + result, err
}

// replaceLeader signals all processes of the leader in the middle of a burst, and waits until another leader has
// bound a pod of the next burst. A stopped leader continues then.
func (f *failover) replaceLeader(ctx context.Context, signal syscall.Signal) error {
	old, err := f.awaitLeader(ctx, "")
	if err != nil {
		return err
	}
	processes, err := f.processesOf(ctx, old)
	if err != nil {
		return err
	}
	before := f.created
	f.createBurst(ctx)
	if err := f.awaitBound(ctx, (before+f.created)/2); err != nil {
		return err
	}
	for _, p := range processes {
		if err := p.Signal(signal); err != nil {
			return err
		}
	}
	start := time.Now()
	f.note("the leader %s is %v", old, signal)
	f.createBurst(ctx)
	next, err := f.awaitLeader(ctx, old)
	if err != nil {
		return err
	}
	f.note("%s leads", next)
	// The leader may have bound every pod before its Lease is read here.
	if err := f.awaitBound(ctx, min(f.tracker.count().bound+1, f.created)); err != nil {
		return err
	}
	f.note("%s binds, %.1f s after the signal", next, time.Since(start).Seconds())
	for _, p := range processes {
		if err := p.Signal(syscall.SIGCONT); err != nil && signal == syscall.SIGSTOP {
			return err
		}
	}
	return f.awaitBound(ctx, f.created)
}

// checkAllRun waits until the pods run, and records each one that does not: they all fit.
func (f *failover) checkAllRun(ctx context.Context) error {
	if err := errors.Join(f.group.Wait(), f.awaitRunning(ctx, time.Now(), time.Time{})); err != nil {
		return err
	}
	pods, err := f.listPods(ctx)
	for _, p := range pods {
		if !isReady(p.Pod) {
			f.watcher.add(p.finding("stuck", "on node %q does not run: %s %s", p.Spec.NodeName, p.Status.Message, p.reason()))
		}
	}
	if len(pods) != f.pods {
		f.watcher.add(finding{promise: "stuck", text: fmt.Sprintf("%d of %d pods exist", len(pods), f.pods)})
	}
	return err
}

func (f *failover) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	f.journal.add("", "%s", text)
	fmt.Fprintf(f.log, "%s: %d pods are bound\n", text, f.tracker.count().bound)
}

// createBurst creates the pods of the next burst, as fast as the API server accepts them.
func (f *failover) createBurst(ctx context.Context) {
	r := rand.New(rand.NewPCG(f.seed, uint64(f.created)))
	first, last := f.created, min(f.created+(f.pods+bursts-1)/bursts, f.pods)
	f.created = last
	var pods []*v1.Pod
	for i := first; i < last; i++ {
		pod := newPod(fmt.Sprintf("burst-%d", i))
		pod.Spec.HostNetwork = true // a network namespace is half of the cost of a start
		pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", 1+r.Int64N(burstUnits))}
		pods = append(pods, pod)
	}
	go func() { // the group blocks at its limit
		for _, pod := range pods {
			f.group.Go(func() error {
				_, err := f.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
				return err
			})
		}
	}()
}

// awaitLeader waits for a leader other than the old one, and returns its name in the Lease.
func (f *failover) awaitLeader(ctx context.Context, old string) (name string, err error) {
	err = stack.Eventually(ctx, leaderTime, fmt.Sprintf("a leader other than %q", old), func(ctx context.Context) (bool, string) {
		lease, err := f.client.CoordinationV1().Leases(stack.Namespace).Get(ctx, "gpumem-scheduler", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return false, fmt.Sprint(err)
		}
		name = *lease.Spec.HolderIdentity
		return name != "" && name != old, name
	})
	return name, err
}

func (f *failover) processesOf(ctx context.Context, leader string) ([]cluster.ContainerProcess, error) {
	name, _, _ := strings.Cut(leader, "_")
	pod, err := f.client.CoreV1().Pods(stack.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	programs := f.stack.SchedulerPrograms()
	all, err := f.cluster.ContainerProcesses(programs...)
	out := slices.DeleteFunc(all, func(p cluster.ContainerProcess) bool { return p.Pod != pod.UID })
	if err == nil && len(out) != len(programs) {
		err = fmt.Errorf("the leader has %d processes, want %d", len(out), len(programs))
	}
	return out, err
}

func (f *failover) awaitBound(ctx context.Context, pods int) error {
	ctx, cancel := context.WithTimeout(ctx, leaderTime)
	defer cancel()
	if err := f.tracker.wait(ctx, func(c counts) bool { return c.bound >= pods }); err != nil {
		return fmt.Errorf("%d pods are bound, want %d: %w", f.tracker.count().bound, pods, err)
	}
	return nil
}
