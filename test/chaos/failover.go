package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

// FailoverConfig describes a failover.
type FailoverConfig struct {
	Name     string // of the cluster
	Pods     int    // of the burst
	Seed     uint64
	KeepLogs bool
	Log      io.Writer
}

// FailoverReport is how a failover has gone.
type FailoverReport struct {
	Pods         int
	Before       int           // bound when the leader was killed
	NextBind     time.Duration // from the kill to the first bind of the next leader
	AllBound     time.Duration // from the first creation
	AllRunning   time.Duration // the same
	DoubleBooked int
	Stuck        int
	Violations   []string
	Leaked       int64
}

// OK says whether all promises held.
func (r FailoverReport) OK() bool {
	return r.DoubleBooked == 0 && r.Stuck == 0 && len(r.Violations) == 0 && r.Leaked == 0
}

func (r FailoverReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the leader was killed when %d of %d pods were bound; all were bound %s after the first was made, and all ran after %s\n",
		r.Before, r.Pods, r.AllBound.Round(100*time.Millisecond), r.AllRunning.Round(100*time.Millisecond))
	for _, v := range r.Violations {
		fmt.Fprintln(&b, "violation:", v)
	}
	if r.Leaked > 0 {
		fmt.Fprintf(&b, "violation: %d units leaked\n", r.Leaked)
	}
	fmt.Fprintf(&b, "result: failover pods=%d double-booked=%d stuck=%d next-bind=%s", r.Pods, r.DoubleBooked, r.Stuck, r.NextBind.Round(10*time.Millisecond))
	return b.String()
}

const (
	failoverNodes = 3
	// Pods of a burst ask for 1 to burstUnits units.
	burstUnits = 5
	a100Units  = 79
	// burstTime is how long a pod of a burst may take to run: the machine is
	// small, and each one needs a network and two containers.
	burstTime = 10 * time.Minute
)

// burstNodes returns nodes with GPUs that a burst fills for the most part, so that a
// pod booked twice finds no room.
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

// Failover starts a cluster with two replicas of the scheduler's pod, kills the
// leader in the middle of a burst of pods, and takes the cluster away.
func Failover(ctx context.Context, config FailoverConfig) (report FailoverReport, err error) {
	log := stamp(config.Log)
	descriptions, err := burstNodes(config.Pods)
	if err != nil {
		return FailoverReport{}, err
	}
	b, err := startBench(ctx, config.Name, descriptions, log)
	if err != nil {
		return FailoverReport{}, err
	}
	defer func() {
		if err != nil || !report.OK() || config.KeepLogs {
			b.keepLogs(ctx)
		}
		err = errors.Join(err, b.stop(ctx))
	}()
	f := &failover{bench: b, tracker: newTracker()}
	if f.watcher, err = newWatcher(b, f.tracker); err != nil {
		return FailoverReport{}, err
	}
	defer func() { err = errors.Join(err, f.watcher.close()) }()
	fmt.Fprintf(log, "failover: seed %d, %d pods, %d nodes with %d GPUs\n", config.Seed, config.Pods, failoverNodes, len(b.devices))
	return f.all(ctx, config.Pods, config.Seed)
}

type failover struct {
	*bench
	tracker *tracker
	watcher *Watcher
}

func (f *failover) all(ctx context.Context, pods int, seed uint64) (report FailoverReport, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	background.Go(func() { f.tracker.run(ctx, f.client) })
	background.Go(func() { f.watcher.run(ctx) })
	background.Go(func() { f.progress(ctx) })

	report.Pods = pods
	leader, err := f.leader(ctx)
	if err != nil {
		return report, err
	}
	burst, burstCtx := errgroup.WithContext(ctx)
	start := time.Now()
	burst.Go(func() error { return f.create(burstCtx, pods, seed) })
	if err := f.waitFor(ctx, func() bool { _, bound, _, _ := f.tracker.counts(); return bound >= pods/3 }); err != nil {
		return report, fmt.Errorf("wait for the first third: %w", err)
	}
	if err := f.killLeader(ctx, leader); err != nil {
		return report, err
	}
	killed := time.Now()
	_, report.Before, _, _ = f.tracker.counts()
	fmt.Fprintf(f.log, "kill -9 the leader, %s, and its extender: %d pods are bound\n", leader, report.Before)
	if report.NextBind, err = f.nextBind(ctx, leader, killed); err != nil {
		return report, err
	}
	fmt.Fprintf(f.log, "the next leader has bound a pod %.2f s after that\n", report.NextBind.Seconds())
	if err := burst.Wait(); err != nil {
		return report, err
	}
	// What does not come to be is counted, and no error.
	if f.waitFor(ctx, func() bool { _, bound, _, _ := f.tracker.counts(); return bound >= pods }) == nil {
		report.AllBound = time.Since(start)
	}
	if f.waitFor(ctx, func() bool { _, _, ran, refused := f.tracker.counts(); return ran+refused >= pods }) == nil {
		report.AllRunning = time.Since(start)
	}
	if ctx.Err() != nil {
		return report, ctx.Err()
	}
	list, err := listPods(ctx, f.client)
	if err != nil {
		return report, err
	}
	for _, p := range list {
		if p.node == "" || p.ended || !f.tracker.hasRun(p.uid) {
			report.Stuck++
			fmt.Fprintf(f.log, "stuck: pod %v, bound to %q: %s\n", p, p.node, p.waits)
		}
	}
	report.Stuck += pods - len(list) // lost altogether
	for why, n := range f.tracker.refusals() {
		fmt.Fprintf(f.log, "a kubelet refused %d pods: %s\n", n, why)
	}
	if err := f.watcher.rest(ctx); err != nil {
		return report, err
	}
	report.DoubleBooked = f.watcher.count(i1, i2)
	if report.Leaked, err = f.leaks(ctx, f.watcher); err != nil {
		return report, err
	}
	var r Report
	r.fill(f.watcher)
	report.Violations = r.Violations
	return report, nil
}

// create makes the pods of the burst as fast as the API server takes them.
func (f *failover) create(ctx context.Context, pods int, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 0))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range pods {
		pod := basicPod(fmt.Sprintf("burst-%d", i))
		pod.Spec.Containers = []v1.Container{sample("main", 1+r.Int64N(burstUnits))}
		group.Go(func() error {
			_, err := f.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
	}
	return group.Wait()
}

// leader returns who holds the Lease of kube-scheduler: "POD_ID".
func (f *failover) leader(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := f.client.CoordinationV1().Leases(stack.Namespace).Get(ctx, "gpumem-scheduler", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil {
		return "", errors.New("nobody holds the Lease")
	}
	return *lease.Spec.HolderIdentity, nil
}

// killLeader kills the leader's kube-scheduler and its extender.
func (f *failover) killLeader(ctx context.Context, leader string) error {
	name, _, _ := strings.Cut(leader, "_")
	pod, err := f.client.CoreV1().Pods(stack.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	all, err := findProcesses(f.cluster.Name(), "kube-scheduler", "gpumem-extender")
	if err != nil {
		return err
	}
	killed := 0
	for _, list := range all {
		for _, p := range list {
			if p.pod != pod.UID {
				continue
			}
			if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
				return err
			}
			killed++
		}
	}
	if killed != 2 {
		return fmt.Errorf("killed %d processes of the leader, want 2", killed)
	}
	return nil
}

// nextBind waits until another leads and one more pod is bound. What the old
// leader had under way arrives before that.
func (f *failover) nextBind(ctx context.Context, old string, killed time.Time) (time.Duration, error) {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		now, err := f.leader(ctx)
		return err == nil && now != "" && now != old, nil
	})
	if err != nil {
		return 0, fmt.Errorf("wait for the next leader: %w", err)
	}
	_, before, _, _ := f.tracker.counts()
	fmt.Fprintf(f.log, "there is a leader %.2f s after that, and %d pods are bound\n", time.Since(killed).Seconds(), before)
	err = f.waitFor(ctx, func() bool { _, bound, _, _ := f.tracker.counts(); return bound > before })
	return time.Since(killed), err
}

func (f *failover) waitFor(ctx context.Context, condition func() bool) error {
	return wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, burstTime, true, func(context.Context) (bool, error) { return condition(), nil })
}

func (f *failover) progress(ctx context.Context) {
	for {
		sleep(ctx, 10*time.Second)
		if ctx.Err() != nil {
			return
		}
		_, bound, ran, refused := f.tracker.counts()
		fmt.Fprintf(f.log, "pods: %d bound, %d ran, %d refused; violations %d\n", bound, ran, refused, f.watcher.count())
	}
}
