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

	"github.com/gpumem/gpumem/test/cluster"
)

// parts are what is killed. The first three run in containers, where the kubelet
// starts them again; of the others, faults does.
var parts = []string{"gpumem-extender", "gpumem-device-plugin", "kube-scheduler", "kubelet", "apiserver", "etcd"}

// faults kills parts at random, with SIGKILL, and starts them again.
type faults struct {
	cluster *cluster.Cluster
	random  *rand.Rand
	log     io.Writer

	mu     sync.Mutex
	counts map[string]int
	own    map[string]int  // ends that nobody asked for
	down   map[string]bool // processes that are to stay down for now
}

func newFaults(c *cluster.Cluster, seed uint64, log io.Writer) *faults {
	return &faults{
		cluster: c, random: rand.New(rand.NewPCG(seed, 1<<32)), log: log,
		counts: make(map[string]int), own: make(map[string]int), down: make(map[string]bool),
	}
}

// run kills until ctx ends, and returns when everything has been started again.
// A failure to kill or to start is the test's own.
func (f *faults) run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	errs := make(chan error, 1)
	for {
		sleep(ctx, 2*time.Second+time.Duration(f.random.Int64N(int64(6*time.Second))))
		if ctx.Err() != nil {
			return nil
		}
		// Now and then, two at once.
		n := 1
		if f.random.IntN(5) == 0 {
			n = 2
		}
		for _, i := range f.random.Perm(len(parts))[:n] {
			downtime := time.Duration(f.random.Int64N(int64(4 * time.Second)))
			pick := f.random.Uint64()
			group.Go(func() {
				if err := f.kill(ctx, parts[i], pick, downtime); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			})
		}
		select {
		case err := <-errs:
			return err
		default:
		}
	}
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
	f.mu.Lock()
	busy := f.down[name]
	f.down[name] = true
	f.mu.Unlock()
	if busy {
		return nil
	}
	defer func() {
		f.mu.Lock()
		delete(f.down, name)
		f.mu.Unlock()
	}()
	if _, running := f.cluster.Running(name); !running {
		return nil // it has ended by itself, and revive will see to it
	}
	if err := f.cluster.Kill(context.WithoutCancel(ctx), name); err != nil {
		return err
	}
	f.killed(part, name)
	sleep(ctx, downtime)
	return f.cluster.StartProcess(name)
}

// killContainer kills one of the processes that run a program in a container.
func (f *faults) killContainer(program string, pick uint64) error {
	all, err := findProcesses(f.cluster.Name(), program)
	if err != nil {
		return err
	}
	candidates := all[program]
	if len(candidates) == 0 {
		return nil // killed before, and not back yet
	}
	p := candidates[pick%uint64(len(candidates))]
	// Containers are called as their programs.
	if err := saveLogs(f.cluster, p.node, program); err != nil {
		return err
	}
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("kill %s on %s: %w", program, p.node, err)
	}
	f.killed(program, program+" on "+p.node)
	return nil
}

func (f *faults) killed(part, what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[part]++
	fmt.Fprintln(f.log, "kill -9", what)
}

// revive starts processes of the cluster that have ended by themselves, as an
// init system would, until ctx ends: an API server gives up when it finds no etcd.
func (f *faults) revive(ctx context.Context) error {
	for ; ctx.Err() == nil; sleep(ctx, 500*time.Millisecond) {
		for _, name := range f.cluster.Processes() {
			f.mu.Lock()
			_, running := f.cluster.Running(name)
			ended := !running && !f.down[name]
			if ended {
				f.down[name] = true
			}
			f.mu.Unlock()
			if !ended {
				continue
			}
			err := f.cluster.StartProcess(name)
			f.mu.Lock()
			delete(f.down, name)
			f.own[name]++
			f.mu.Unlock()
			if err != nil {
				return err
			}
			fmt.Fprintln(f.log, name, "had ended by itself and was started again")
		}
	}
	return nil
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
