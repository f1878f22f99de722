package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

// FailoverConfig describes a failover.
type FailoverConfig struct {
	Config
	Pods int // of the burst
}

const (
	failoverNodes = 3
	// maxPods is how many pods a kubelet takes: see test/cluster.
	maxPods = 250
	// Pods of a burst ask for 1 to burstUnits units.
	burstUnits = 5
	a100Units  = 79
	// leaderTime is how long it may take until there is another leader, and until it
	// binds a pod.
	leaderTime = 5 * time.Minute
)

// burstNodes returns nodes with GPUs that a burst fills for the most part, so
// that a pod booked twice would find no room.
func burstNodes(pods int) ([]cluster.Node, error) {
	units := pods * (1 + burstUnits) / 2
	gpus := units*10/9/a100Units/failoverNodes + 1
	var out []cluster.Node
	for i := range failoverNodes {
		name := fmt.Sprintf("node%d", i+1)
		var list []fakenvml.GPU
		for j := range gpus {
			list = append(list, fakenvml.A100_80GB(fmt.Sprintf("%s-%d", name, j)))
		}
		node, err := stack.Node(name, list...)
		if err != nil {
			return nil, err
		}
		out = append(out, node)
	}
	return out, nil
}

// Failover starts a cluster with two replicas of the scheduler's pod, kills the leader in the
// middle of a burst of pods, freezes the next one in the middle of another and thaws it in the
// one after that, when another leads, and takes the cluster away.
func Failover(ctx context.Context, config FailoverConfig) (report FailoverReport, err error) {
	if config.Pods < bursts || config.Pods > failoverNodes*maxPods*9/10 {
		return FailoverReport{}, fmt.Errorf("a burst of %d pods: want from %d to %d", config.Pods, bursts, failoverNodes*maxPods*9/10)
	}
	nodes, err := burstNodes(config.Pods)
	if err != nil {
		return FailoverReport{}, err
	}
	err = withBench(ctx, config.Config, nodes, func(ctx context.Context, b *bench) (bool, error) {
		fmt.Fprintf(b.log, "failover: seed %d, %d pods, %d nodes with %d GPUs\n", config.Seed, config.Pods, failoverNodes, len(b.devices))
		f := &failover{bench: b, pods: config.Pods, next: make(chan struct{}, bursts), report: FailoverReport{Seed: config.Seed, Pods: config.Pods}}
		err := f.run(ctx)
		report = f.report
		report.Refused, report.Findings = b.tracker.refusals(), b.watcher.findings()
		return report.OK() && err == nil, err
	})
	return report, err
}

type failover struct {
	*bench
	pods   int
	next   chan struct{} // a token for each burst that may begin
	report FailoverReport
}

func (f *failover) run(ctx context.Context) error {
	beside, done := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { f.progress(beside, func() string { return "" }) })
	defer group.Wait()
	defer done()

	burst, burstCtx := errgroup.WithContext(ctx)
	start := time.Now()
	burst.Go(func() error { return f.create(burstCtx) })
	if err := f.kill(ctx); err != nil {
		return err
	}
	if err := f.freeze(ctx); err != nil {
		return err
	}
	if err := burst.Wait(); err != nil {
		return err
	}
	if err := f.await(ctx, start); err != nil {
		return err
	}
	if err := f.countStuck(ctx); err != nil {
		return err
	}
	if err := f.watcher.rest(ctx); err != nil {
		return err
	}
	f.report.Doubled = f.watcher.count(i1, i2)
	var err error
	f.report.Leaked, err = f.leaks(ctx)
	return err
}

// bursts is how many there are: the leader is killed in the first, and the next one binds the
// second; it is frozen in the third, and thawed in the fourth, when another leads.
const bursts = 4

// create makes the pods of each burst as fast as the API server takes them, when that may begin,
// so that something is left to bind on any machine.
func (f *failover) create(ctx context.Context) error {
	r := rand.New(rand.NewPCG(f.report.Seed, 0))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range f.pods {
		if i == 0 || i*bursts/f.pods != (i-1)*bursts/f.pods {
			select {
			case <-f.next:
			case <-ctx.Done():
			}
		}
		pod := basicPod(fmt.Sprintf("burst-%d", i))
		pod.Spec.HostNetwork = true // a network of its own is half of what starting it takes
		pod.Spec.Containers = []v1.Container{stack.SampleContainer("main", 1+r.Int64N(burstUnits))}
		group.Go(func() error {
			_, err := f.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
	}
	return group.Wait()
}

// kill kills the leader in the middle of the first burst, and waits for the next one's first
// bind.
func (f *failover) kill(ctx context.Context) error {
	leader, err := f.signalLeader(ctx, 0, syscall.SIGKILL)
	if err != nil {
		return err
	}
	f.report.Before = leader.bound
	f.journal.add("", "kill -9 the leader %s", leader.name)
	fmt.Fprintf(f.log, "kill -9 the leader, %s: %d pods are bound\n", leader.name, leader.bound)
	f.report.NextBind, err = f.nextBind(ctx, leader)
	return err
}

// freeze stops the leader in the middle of the third burst, and has it go on in the fourth, when
// another leads and binds.
func (f *failover) freeze(ctx context.Context) error {
	leader, err := f.signalLeader(ctx, 2, syscall.SIGSTOP)
	if err != nil {
		return err
	}
	f.report.Frozen = leader.bound
	f.journal.add("", "freeze the leader %s", leader.name)
	fmt.Fprintf(f.log, "freeze the leader, %s: %d pods are bound\n", leader.name, leader.bound)
	if _, err := f.nextBind(ctx, leader); err != nil {
		return err
	}
	for _, p := range leader.processes {
		if err := p.Signal(syscall.SIGCONT); err != nil {
			return fmt.Errorf("thaw %s: %w", leader.name, err)
		}
	}
	f.journal.add("", "thaw %s", leader.name)
	fmt.Fprintf(f.log, "thaw %s: %d pods are bound\n", leader.name, f.tracker.count().bound)
	return nil
}

// oldLeader is one that got a signal.
type oldLeader struct {
	name      string // of its Lease: "POD_ID"
	processes []cluster.ContainerProcess
	bound     int // pods at the signal
	created   int // pods, until the next signal
	at        time.Time
}

// signalLeader has a burst begin after so many others, sends a signal to all processes of the
// leader when half of it is bound, and has the next burst begin.
func (f *failover) signalLeader(ctx context.Context, others int, signal syscall.Signal) (oldLeader, error) {
	if err := f.waitBound(ctx, others*f.pods/bursts); err != nil {
		return oldLeader{}, err
	}
	leader, err := f.awaitLeader(ctx, "")
	if err != nil {
		return oldLeader{}, err
	}
	processes, err := f.processesOf(ctx, leader)
	if err != nil {
		return oldLeader{}, err
	}
	f.next <- struct{}{}
	if err := f.waitBound(ctx, (2*others+1)*f.pods/bursts/2); err != nil {
		return oldLeader{}, err
	}
	for _, p := range processes {
		if err := p.Signal(signal); err != nil {
			return oldLeader{}, err
		}
	}
	old := oldLeader{leader, processes, f.tracker.count().bound, (others + 2) * f.pods / bursts, time.Now()}
	f.next <- struct{}{}
	return old, nil
}

// nextBind waits for the next leader and its first bind, and returns how long after the signal
// that was. The next leader can have bound all that there is before it is seen.
func (f *failover) nextBind(ctx context.Context, old oldLeader) (time.Duration, error) {
	if _, err := f.awaitLeader(ctx, old.name); err != nil {
		return 0, err
	}
	// What the old leader had under way has arrived by now.
	before := f.tracker.count().bound
	fmt.Fprintf(f.log, "there is another leader %.2f s after that, and %d pods are bound\n", time.Since(old.at).Seconds(), before)
	if err := f.waitBound(ctx, min(before+1, old.created)); err != nil {
		return 0, err
	}
	took := time.Since(old.at)
	fmt.Fprintf(f.log, "it has bound a pod %.2f s after that\n", took.Seconds())
	return took, nil
}

// leader returns who holds the Lease of kube-scheduler: "POD_ID".
func (f *failover) leader(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := f.client.CoordinationV1().Leases(stack.Namespace).Get(ctx, "gpumem-scheduler", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", errors.New("no one has the Lease")
	}
	return *lease.Spec.HolderIdentity, nil
}

// processesOf returns all processes of a leader.
func (f *failover) processesOf(ctx context.Context, leader string) ([]cluster.ContainerProcess, error) {
	name, _, _ := strings.Cut(leader, "_")
	pod, err := f.client.CoreV1().Pods(stack.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	programs := f.stack.SchedulerPrograms()
	all, err := f.cluster.ContainerProcesses(programs...)
	if err != nil {
		return nil, err
	}
	out := slices.DeleteFunc(all, func(p cluster.ContainerProcess) bool { return p.Pod != pod.UID })
	if len(out) != len(programs) {
		return nil, fmt.Errorf("the leader has %d processes, want %d", len(out), len(programs))
	}
	return out, nil
}

// awaitLeader waits for a leader other than the old one.
func (f *failover) awaitLeader(ctx context.Context, old string) (now string, err error) {
	err = stack.Eventually(ctx, leaderTime, fmt.Sprintf("a leader other than %q", old), func(ctx context.Context) (bool, string) {
		now, err = f.leader(ctx)
		return err == nil && now != old, fmt.Sprint(now, err)
	})
	return now, err
}

// await waits until all pods are bound, and until all have run. What does not
// come to be is no error: it is counted later.
func (f *failover) await(ctx context.Context, start time.Time) error {
	_, err := settle(ctx, func(context.Context) string {
		c := f.tracker.count()
		if c.bound >= f.pods && f.report.AllBound == 0 {
			f.report.AllBound = time.Since(start)
		}
		if c.ran+c.refused < f.pods {
			return fmt.Sprintf("%d are bound, %d have run", c.bound, c.ran)
		}
		f.report.AllRunning = time.Since(start)
		return ""
	})
	return err
}

// countStuck counts the pods that do not run.
func (f *failover) countStuck(ctx context.Context) error {
	list, err := listPods(ctx, f.client)
	if err != nil {
		return err
	}
	f.report.Stuck = f.pods - len(list) // lost altogether
	for _, p := range list {
		if p.node == "" || p.ended || !f.tracker.hasRun(p.uid) {
			f.report.Stuck++
			fmt.Fprintf(f.log, "stuck: pod %v, bound to %q: %s\n", p, p.node, p.waits)
		}
	}
	return nil
}

// waitBound waits until so many pods are bound.
func (f *failover) waitBound(ctx context.Context, pods int) error {
	ctx, cancel := context.WithTimeout(ctx, leaderTime)
	defer cancel()
	if err := f.tracker.waitCount(ctx, func(c counts) bool { return c.bound >= pods }); err != nil {
		return fmt.Errorf("%d pods are bound; wait until %d are: %w", f.tracker.count().bound, pods, err)
	}
	return nil
}
