package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpumem/gpumem/test/cluster"
)

// lateAnswers is a fault that kills nothing: for a while a kubelet does not answer about PodResources, and the
// device plugin cannot tell which of two equal pods it admits.
const lateAnswers = "late PodResources"

// Faults kill parts at random with SIGKILL, and start them again.
type faults struct {
	*bench
	parts []string

	mu     sync.Mutex
	total  int
	down   map[string]bool // processes that stay down for now
	outage time.Time       // when the API server or etcd was last started
}

func newFaults(b *bench) *faults {
	parts := append(b.stack.SchedulerPrograms(), devicePlugin, "kubelet", "apiserver", "etcd")
	return &faults{bench: b, parts: parts, down: make(map[string]bool)}
}

// run kills until ctx ends, and returns once every process runs again. round varies the choices between storms.
func (f *faults) run(ctx context.Context, round uint64) error {
	r := rand.New(rand.NewPCG(f.seed, 1<<32+round))
	group, ctx := errgroup.WithContext(ctx)
	for {
		pause := time.Second + time.Duration(r.Int64N(int64(6*time.Second)))
		n := 1
		if r.IntN(5) == 0 {
			n = 2
		}
		victims := r.Perm(len(f.parts))[:n]
		late, node, lateTime := r.IntN(3) == 0, f.cluster.Nodes()[r.IntN(len(f.answers))], 2*time.Second+time.Duration(r.Int64N(int64(6*time.Second)))
		sleep(ctx, pause)
		f.awaitBind(ctx)
		if ctx.Err() != nil {
			return group.Wait()
		}
		if late {
			group.Go(func() error {
				return f.whileDown(lateAnswers+" of "+node, func() error {
					f.add("%s of %s for %s", lateAnswers, node, lateTime)
					f.answers[node].KeepBack()
					sleep(ctx, lateTime)
					f.answers[node].LetThrough()
					return nil
				})
			})
		}
		for _, i := range victims {
			downtime, pick := time.Duration(r.Int64N(int64(4*time.Second))), r.IntN(1<<20)
			group.Go(func() error { return f.kill(ctx, f.parts[i], pick, downtime) })
		}
	}
}

// awaitBind waits until another pod is bound, for 20 seconds at most: a cluster that only recovers does nothing
// that could go wrong.
func (f *faults) awaitBind(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	before := f.tracker.count().bound
	_ = f.tracker.wait(ctx, func(c counts) bool { return c.bound > before })
}

func (f *faults) kill(ctx context.Context, part string, pick int, downtime time.Duration) error {
	name := part
	switch part {
	case "apiserver", "etcd":
	case "kubelet":
		name = "kubelet@" + f.cluster.Nodes()[pick%len(f.cluster.Nodes())]
	default:
		return f.killContainers(part, func(all []cluster.ContainerProcess) []cluster.ContainerProcess {
			if len(all) == 0 {
				return nil // killed before, and not started again yet
			}
			f.add("kill -9 %s", part)
			return all[pick%len(all):][:1]
		})
	}
	return f.whileDown(name, func() error {
		if _, running := f.cluster.Running(name); running {
			if err := f.cluster.Kill(context.WithoutCancel(ctx), name); err != nil {
				return err
			}
			f.add("kill -9 %s", name)
		}
		sleep(ctx, downtime)
		return f.start(name)
	})
}

func (f *faults) start(name string) error {
	f.journal.add("", "start %s", name)
	if name == "apiserver" || name == "etcd" {
		f.mu.Lock()
		f.outage = time.Now()
		f.mu.Unlock()
	}
	return f.cluster.StartProcess(name)
}

// whileDown runs f unless another fault has the process down.
func (f *faults) whileDown(name string, fault func() error) error {
	f.mu.Lock()
	taken := f.down[name]
	f.down[name] = true
	f.mu.Unlock()
	if taken {
		return nil
	}
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.down, name)
	}()
	return fault()
}

func (f *faults) add(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total++
	f.journal.add("", format, args...)
	fmt.Fprintf(f.log, format+"\n", args...)
}

// revive starts processes that have ended by themselves until ctx ends: an API server ends without etcd.
func (f *faults) revive(ctx context.Context) error {
	for ; ctx.Err() == nil; sleep(ctx, 500*time.Millisecond) {
		for _, name := range f.cluster.Processes() {
			err := f.whileDown(name, func() error {
				if _, running := f.cluster.Running(name); running {
					return nil
				}
				f.add("%s ended by itself", name)
				return f.start(name)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// count returns the number of faults, and when the API server or etcd was last started.
func (f *faults) count() (total int, outage time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total, f.outage
}
