package chaos

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// late is a fault that kills nothing: for a while a kubelet does not answer about PodResources,
// and the device plugin cannot know which of two equal pods is admitted.
const late = "late PodResources"

// bindTime is how long a fault waits for a pod to be bound after the last one.
const bindTime = 20 * time.Second

// faults kills parts at random, with SIGKILL, and starts them again.
type faults struct {
	cluster *cluster.Cluster
	parts   []string // that are killed
	answers map[string]*cluster.Answers
	random  *rand.Rand
	tracker *tracker
	journal *journal
	log     io.Writer

	mu     sync.Mutex
	counts map[string]int
	own    map[string]int  // ends that nobody asked for
	down   map[string]bool // processes that are to stay down for now
	outage time.Time       // when the API server or etcd was last started again
}

func newFaults(b *bench, seed uint64) *faults {
	// The programs run in containers, where the kubelet starts them again; of the others,
	// faults does.
	parts := append(b.stack.SchedulerPrograms(), devicePlugin, "kubelet", "apiserver", "etcd")
	return &faults{
		cluster: b.cluster, parts: parts, answers: b.answers, random: rand.New(rand.NewPCG(seed, 1<<32)), tracker: b.tracker, journal: b.journal, log: b.log,
		counts: make(map[string]int), own: make(map[string]int), down: make(map[string]bool),
	}
}

// run kills until ctx ends, and returns when everything has been started again.
// A failure to kill or to start is the test's own.
func (f *faults) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for {
		pause := time.Second + time.Duration(f.random.Int64N(int64(6*time.Second)))
		// Now and then, two at once.
		n := 1
		if f.random.IntN(5) == 0 {
			n = 2
		}
		victims := f.random.Perm(len(f.parts))[:n]
		sleep(ctx, pause)
		f.awaitBind(ctx)
		if ctx.Err() != nil {
			return group.Wait()
		}
		if f.random.IntN(3) == 0 {
			node, d := f.random.IntN(len(f.answers)), 2*time.Second+time.Duration(f.random.Int64N(int64(6*time.Second)))
			group.Go(func() error {
				if letThrough := f.keepBack(f.cluster.Nodes()[node]); letThrough != nil {
					sleep(ctx, d)
					letThrough()
				}
				return nil
			})
		}
		for _, i := range victims {
			downtime := time.Duration(f.random.Int64N(int64(4 * time.Second)))
			pick := f.random.Uint64()
			group.Go(func() error { return f.kill(ctx, f.parts[i], pick, downtime) })
		}
	}
}

// awaitBind waits until another pod is bound, for a while.
func (f *faults) awaitBind(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, bindTime)
	defer cancel()
	before := f.tracker.count().bound
	_ = f.tracker.waitCount(ctx, func(c counts) bool { return c.bound > before })
}

func (f *faults) kill(ctx context.Context, part string, pick uint64, downtime time.Duration) error {
	switch part {
	case "apiserver", "etcd":
		return f.killProcess(ctx, part, part, downtime)
	case "kubelet":
		nodes := f.cluster.Nodes()
		return f.killProcess(ctx, part, "kubelet@"+nodes[pick%uint64(len(nodes))], downtime)
	default:
		return f.killContainer(part, pick)
	}
}

// killProcess kills one of the cluster's processes and starts it again later.
func (f *faults) killProcess(ctx context.Context, part, name string, downtime time.Duration) error {
	if !f.takeDown(name) {
		return nil
	}
	defer f.release(name)
	if _, running := f.cluster.Running(name); running { // else it has ended by itself just now
		if err := f.cluster.Kill(context.WithoutCancel(ctx), name); err != nil {
			return err
		}
		f.killed(part, name)
	}
	sleep(ctx, downtime)
	f.journal.add("", "start %s", name)
	return f.start(name)
}

// keepBack has a kubelet not answer about PodResources until the function that it returns is
// called. That is nil where the answers are kept back already.
func (f *faults) keepBack(node string) (letThrough func()) {
	name := late + " of " + node
	if !f.takeDown(name) {
		return nil
	}
	f.mu.Lock()
	f.counts[late]++
	f.mu.Unlock()
	f.journal.add("", "%s", name)
	f.answers[node].KeepBack()
	return func() {
		f.answers[node].LetThrough()
		f.journal.add("", "%s: no more", name)
		f.release(name)
	}
}

// start starts a process again.
func (f *faults) start(name string) error {
	if name == "apiserver" || name == "etcd" {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.outage = time.Now()
	}
	return f.cluster.StartProcess(name)
}

// lastOutage returns when the API server or etcd was last started again.
func (f *faults) lastOutage() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.outage
}

// takeDown claims a process; it fails when it has been claimed already.
func (f *faults) takeDown(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down[name] {
		return false
	}
	f.down[name] = true
	return true
}

func (f *faults) release(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.down, name)
}

// killContainer kills one of the processes that run a program in a container.
func (f *faults) killContainer(program string, pick uint64) error {
	candidates, err := f.cluster.ContainerProcesses(program)
	if err != nil {
		return err
	}
	if len(candidates) == 0 {
		return nil // killed before, and not back yet
	}
	p := candidates[pick%uint64(len(candidates))]
	// Containers are called as their programs.
	if err := stack.KeepContainerLogs(f.cluster, p.Node, program); err != nil {
		return err
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	f.killed(program, program+" on "+p.Node)
	return nil
}

func (f *faults) killed(part, what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[part]++
	f.journal.add("", "kill -9 %s", what)
	fmt.Fprintln(f.log, "kill -9", what)
}

// revive starts processes of the cluster that have ended by themselves, as an
// init system would, until ctx ends: an API server gives up when it finds no etcd.
func (f *faults) revive(ctx context.Context) error {
	for ; ctx.Err() == nil; sleep(ctx, 500*time.Millisecond) {
		for _, name := range f.cluster.Processes() {
			if err := f.reviveOne(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *faults) reviveOne(name string) error {
	if !f.takeDown(name) {
		return nil
	}
	defer f.release(name)
	if _, running := f.cluster.Running(name); running {
		return nil
	}
	f.mu.Lock()
	f.own[name]++
	f.mu.Unlock()
	f.journal.add("", "start %s, which had ended by itself", name)
	fmt.Fprintln(f.log, name, "had ended by itself and is started again")
	return f.start(name)
}

func (f *faults) total() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := 0
	for _, n := range f.counts {
		sum += n
	}
	return sum
}

func (f *faults) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, part := range slices.Sorted(maps.Keys(f.counts)) {
		out = append(out, fmt.Sprintf("%s %d", part, f.counts[part]))
	}
	for _, name := range slices.Sorted(maps.Keys(f.own)) {
		out = append(out, fmt.Sprintf("%s ended by itself %d", name, f.own[name]))
	}
	return strings.Join(out, ", ")
}
