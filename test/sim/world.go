package sim

import (
	"container/heap"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sort"
	"sync"
	"testing/synctest"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// World is one run: a queue of events in virtual time, and everything that
// they happen to. It must be made and used inside a synctest bubble.
//
// One goroutine at a time does anything: the loop, which works off events, or a
// coroutine of a process while the loop waits for it to block again. Both hold
// mu whenever they touch the world, product code runs without it.
type World struct {
	cfg       Config
	names     api.Names
	resources []gpu.Resource // memory, and in some runs cores

	mu      sync.Mutex
	rng     *rand.Rand
	start   time.Time
	queue   queue
	awaited time.Duration // when the next event is due
	sooner  chan struct{} // closed when another is before it; nil: time does not pass
	seq     int64
	steps   int
	up      int  // of them, until the cluster was up
	room    int  // for so many pods
	quiet   bool // faults are off
	busy    bool // the event at hand has started or woken a coroutine
	stopped bool
	found   *Violation
	out     io.Writer

	live     liveness
	api      *apiServer
	replicas []*replica
	leader   int
	machines []*machine
	pods     map[string]*spec // by UID, never removed
	order    []*spec          // in order of creation
	serial   int
	decoded  map[string]decoded
	sent     map[string][]sending // the last bindings of each pod by each extender, by UID
	checked  int64                // the version of the API's objects that has been checked
	procs    []*process
	counts   Counts
}

// Violation is a broken invariant.
type Violation struct {
	Invariant string
	Detail    string
	Step      int
	At        time.Duration
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s broken at step %d (%s): %s", v.Invariant, v.Step, v.At, v.Detail)
}

// process is something that can be killed at any moment. Its events are dropped
// and its coroutines end when it is.
type process struct {
	name    string
	dead    chan struct{}
	live    bool
	stalled bool     // it is stopped, and goes on later
	held    []*event // what has been due since
}

func (w *World) newProcess(name string) *process {
	p := &process{name: name, dead: make(chan struct{}), live: true}
	w.procs = append(w.procs, p)
	return p
}

func (p *process) kill() {
	if p.live {
		p.live = false
		close(p.dead)
	}
}

type event struct {
	at    time.Duration // since the start
	owner *process      // nil: nobody's, it happens in any case
	name  string
	fire  func()
}

type queue []*event

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(*event)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}

// tick is the grain of virtual time. Each event has a nanosecond of its own
// within it, so that no two events, and no timers that product code starts in
// two events, are ever due at once: select would then choose at random.
const tick = time.Millisecond

// now returns how long the run has lasted.
func (w *World) now() time.Duration { return time.Since(w.start) }

// after puts an event into the queue, one tick ahead at least.
func (w *World) after(d time.Duration, owner *process, name string, fire func()) {
	w.at(w.now()/tick+max(1, d/tick), owner, name, fire)
}

// every has something happen again and again, each time so long after it has.
func (w *World) every(pause func() time.Duration, owner *process, name string, fire func()) {
	w.after(pause(), owner, name, func() {
		fire()
		w.every(pause, owner, name, fire)
	})
}

// at puts an event into the queue by the number of its tick. Of two in the same
// tick the one that was put there first comes first.
func (w *World) at(n time.Duration, owner *process, name string, fire func()) {
	w.seq++
	if w.seq >= int64(tick) {
		panic("sim: too many events for the grain of time")
	}
	e := &event{at: n*tick + time.Duration(w.seq), owner: owner, name: name, fire: fire} //nolint:durationcheck // n is a number
	heap.Push(&w.queue, e)
	if w.sooner != nil && e.at < w.awaited {
		close(w.sooner)
		w.sooner = nil
	}
}

// stall stops a process for a while. What is due meanwhile happens afterwards,
// in the same order and before all that is due later.
func (w *World) stall(p *process, d time.Duration) {
	if p.stalled {
		return
	}
	p.stalled = true
	w.after(d, nil, p.name+": goes on", func() {
		now := w.now() / tick
		later := func(e *event) bool { return e.owner != p || e.at/tick > now }
		late := slices.DeleteFunc(slices.Clone(w.queue), later)
		sort.Sort(late)
		w.queue = slices.DeleteFunc(w.queue, func(e *event) bool { return !later(e) })
		heap.Init(&w.queue)
		for _, e := range append(p.held, late...) {
			w.at(now, p, e.name, e.fire)
		}
		p.stalled, p.held = false, nil
	})
}

// next works off one event. It reports false when there is none before the
// deadline, or an invariant has been broken.
func (w *World) next(deadline time.Duration) bool {
	for len(w.queue) > 0 && w.found == nil {
		e := w.queue[0]
		if e.at > deadline {
			return false
		}
		if p := e.owner; p != nil && !p.live {
			heap.Pop(&w.queue)
			continue
		} else if p != nil && p.stalled {
			heap.Pop(&w.queue)
			p.held = append(p.held, e)
			continue
		}
		if w.await(e); w.queue[0] != e {
			continue // a timer of the product's has had something happen before
		}
		heap.Pop(&w.queue)
		w.steps++
		w.logf("%s", e.name)
		w.guard(e.fire)
		if w.busy {
			w.settleCoroutines()
			w.busy = false
			w.sendDevices()
		}
		w.lookAgain()
		if w.found == nil {
			w.check()
		}
		return w.found == nil
	}
	return false
}

// await lets time pass until an event is due, or until a coroutine that a timer has
// woken has put one before it.
func (w *World) await(e *event) {
	d := e.at - w.now()
	if d <= 0 {
		return
	}
	sooner := make(chan struct{})
	w.awaited, w.sooner = e.at, sooner
	w.mu.Unlock()
	timer := time.NewTimer(d)
	select {
	case <-timer.C:
	case <-sooner:
		timer.Stop()
		synctest.Wait()
	}
	w.mu.Lock()
	w.sooner = nil
}

// lock takes the world's lock, and returns what gives it back.
func (w *World) lock() (unlock func()) {
	w.mu.Lock()
	return w.mu.Unlock
}

// settleCoroutines waits until each coroutine is blocked.
func (w *World) settleCoroutines() {
	w.mu.Unlock()
	synctest.Wait()
	w.mu.Lock()
}

// guard turns a panic of product code into a violation. The world's lock must
// be held, and is when it returns.
func (w *World) guard(f func()) {
	defer func() {
		if r := recover(); r != nil {
			w.violate("I9", "panic: %v\n%s", r, debug.Stack())
		}
	}()
	f()
}

// spawn starts a coroutine of a process: it begins when the event that starts
// it is over, and has the world's lock.
func (w *World) spawn(f func()) {
	w.busy = true
	go func() {
		defer func() {
			if r := recover(); r != nil {
				w.mu.TryLock() // or it is held here already
				w.violate("I9", "panic: %v\n%s", r, debug.Stack())
				w.mu.Unlock()
			}
		}()
		w.mu.Lock() // the event is over
		f()
		w.mu.Unlock() // not where the process has died in f, without the lock
	}()
}

// reply is what a coroutine waits for.
type reply struct {
	ch   chan struct{}
	sent bool
}

func newReply() *reply { return &reply{ch: make(chan struct{})} }

// send wakes the coroutine. Only the first call counts.
func (w *World) send(r *reply) {
	if !r.sent {
		r.sent = true
		w.busy = true
		close(r.ch)
	}
}

// wait blocks a coroutine of a process until the reply comes or the context is
// done. The world's lock is given up for so long.
func (w *World) wait(ctx context.Context, p *process, r *reply) error {
	w.mu.Unlock()
	var err error
	select {
	case <-r.ch:
	case <-p.dead:
		runtime.Goexit()
	case <-ctx.Done():
		err = ctx.Err()
	}
	w.mu.Lock()
	return err
}

// sleep blocks a coroutine of a process.
func (w *World) sleep(p *process, name string, d time.Duration) {
	r := newReply()
	w.after(d, p, name, func() { w.send(r) })
	_ = w.wait(context.Background(), p, r) // cannot fail: there is no deadline
}

func (w *World) violate(invariant, format string, args ...any) {
	if w.found == nil {
		w.found = &Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...), Step: w.steps, At: w.now()}
		w.logf("VIOLATION %s: %s", invariant, w.found.Detail)
	}
}

func (w *World) logf(format string, args ...any) {
	if w.out != nil {
		fmt.Fprintf(w.out, "%4d %9.3fs  %s\n", w.steps, w.now().Seconds(), fmt.Sprintf(format, args...))
	}
}

// chance draws: true once in n times on average, never when faults are off.
func (w *World) chance(n int) bool { return !w.quiet && w.rng.IntN(n) == 0 }

// between draws a duration in whole ticks.
func (w *World) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.rng.Int64N(int64((high-low)/tick)+1))*tick
}

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }
