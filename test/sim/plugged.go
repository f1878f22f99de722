package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
	"github.com/gpumem/gpumem/pkg/scheduler/lease"
)

// mode is where gpumem decides.
type mode int

const (
	throughExtender mode = iota // beside kube-scheduler, which asks
	inProcess                   // within kube-scheduler: gpumem-scheduler
)

// modeOf has every other run in each mode.
func modeOf(seed uint64) mode {
	return pick(rand.New(rand.NewPCG(seed, 12)), []mode{throughExtender, inProcess})
}

func (m mode) String() string { return []string{"extender", "plugin"}[m] }

// kube-scheduler's defaults of leader election.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// plugged is what a process of gpumem-scheduler has beyond its cache: kube-scheduler, and the
// Lease. Its kube-scheduler follows the informers of which the cache is told, and hears of the
// same sooner or later than the cache.
type plugged struct {
	*extenderProc
	decider  *decider.Decider
	sched    *scheduler
	lock     *lease.Lock
	identity string
	leads    bool
	since    time.Duration   // it leads
	renewed  time.Duration   // the Lease, when it was last
	cut      bool            // it cannot renew the Lease any more
	freezes  bool            // as soon as it has reserved for a pod
	reserved map[string]bool // UIDs of pods for which it has, and whose Bind has not ended
}

// plugIn makes a process one of gpumem-scheduler.
func (e *extenderProc) plugIn(r *replica, books *controller.Feeder) {
	w := e.w
	w.serial++
	p := &plugged{extenderProc: e, identity: fmt.Sprintf("%s_%d", r.name, w.serial), reserved: make(map[string]bool)}
	config := &leaderelection.LeaderElectionConfig{Lock: leaseOf{p}, LeaseDuration: leaseDuration, RetryPeriod: retryPeriod}
	lock, err := lease.Watch(config, time.Now, e.ext.Drain)
	if err != nil {
		panic(err) // the defaults are right
	}
	e.plugged, p.lock = p, lock
	e.ext.Leads = lock.Leads
	p.decider = &e.ext.Decider
	e.stored.nodes = w.api.watchNodes(e.process, r.name+" nodes", toolscache.ResourceEventHandlerFuncs{}, func(*v1.Node) bool { return true })
	e.stored.pods = w.api.watchPods(e.process, r.name+" pods", toolscache.ResourceEventHandlerFuncs{}, notTerminal)
	e.nodes = listen(e.stored.nodes, &w.api.nodeSubs, r.name+" cache: nodes", books.NodeHandler())
	e.pods = listen(e.stored.pods, &w.api.podSubs, r.name+" cache: pods", books.PodHandler())
	p.sched = newScheduler(w, e.process, r)
	p.sched.own = p
	p.sched.nodes = listen(e.stored.nodes, &w.api.nodeSubs, r.name+" scheduler: nodes", p.sched.nodeHandler())
	p.sched.pods = listen(e.stored.pods, &w.api.podSubs, r.name+" scheduler: pods", p.sched.podHandler())
	p.sched.pods.after, p.sched.nodes.after = p.sched.wake, p.sched.wake
	p.electIn(w.between(1*tick, retryPeriod))
}

// electIn has the process renew the Lease after a while, or take it.
func (p *plugged) electIn(d time.Duration) {
	p.w.after(d, p.process, p.name+": the Lease", func() {
		p.elect()
		p.electIn(retryPeriod + p.w.between(0, 200*tick))
	})
}

// elect is one try of client-go's leader election.
func (p *plugged) elect() {
	w := p.w
	mine, unreachable := w.api.holder == p.identity, p.cut || w.api.down
	switch {
	case p.leads && w.api.holder == "" && !unreachable:
		// It was frozen, and another has led and given the Lease back: client-go takes that for a renewal.
		w.spawn(func() { p.write(p.identity) })
	case p.leads && (!mine || w.now()-p.renewed > renewDeadline):
		w.logf("  %s has lost the lead", p.name)
		p.leads = false
		if mine && !unreachable {
			p.giveBack()
		} else {
			w.restart(w.replicaOf(p.extenderProc))
		}
	case unreachable:
	case mine, w.api.holder == "", w.now()-w.api.renewed > leaseDuration:
		w.spawn(func() { p.write(p.identity) }) // nothing refuses it
	}
}

// giveBack ends the process: what was sent is answered first, and then the Lease is given back.
func (p *plugged) giveBack() {
	p.leads, p.sched.ending = false, true
	p.w.spawn(func() {
		p.write("") // or another has taken it
		if p.live {
			p.w.restart(p.w.replicaOf(p.extenderProc))
		}
	})
}

func (p *plugged) write(holder string) {
	record := resourcelock.LeaderElectionRecord{HolderIdentity: holder, LeaderTransitions: p.w.api.turns}
	if p.w.api.holder != p.identity {
		record.LeaderTransitions++
	}
	p.w.free(func() { _ = p.lock.Update(context.Background(), record) })
}

// leaseOf is the Lease at the API server.
type leaseOf struct{ p *plugged }

func (l leaseOf) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return nil, nil, errors.New("it is not read")
}
func (l leaseOf) RecordEvent(string) {}
func (l leaseOf) Describe() string   { return "the Lease" }
func (l leaseOf) Identity() string   { return l.p.identity }

func (l leaseOf) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, r)
}

func (l leaseOf) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	p, w := l.p, l.p.w
	defer w.lock()()
	if !p.live {
		return errLost
	}
	if r.HolderIdentity == "" && w.api.holder != p.identity {
		return errLost
	}
	taken := r.HolderIdentity == p.identity && w.api.holder != p.identity
	w.api.holder, w.api.renewed, p.renewed, w.api.turns = r.HolderIdentity, w.now(), w.now(), r.LeaderTransitions
	if taken || r.HolderIdentity == p.identity && !p.leads {
		w.logf("  %s leads", p.identity)
		w.api.bump()
		p.leads, p.since = true, w.now()
		for i, replica := range w.replicas {
			if replica.ext == p.extenderProc {
				w.leader, replica.sched = i, p.sched
			}
		}
		clear(w.live.waits)
		p.sched.wake()
	}
	return nil
}

func (w *World) replicaOf(e *extenderProc) *replica {
	for _, r := range w.replicas {
		if r.ext == e {
			return r
		}
	}
	return nil
}

// restart ends a replica's process of gpumem-scheduler, and starts another later.
func (w *World) restart(r *replica) {
	if r == nil || !r.ext.live {
		return
	}
	r.ext.crash()
	w.after(w.between(200*tick, 5*time.Second), nil, r.name+": gpumem-scheduler starts", func() {
		if !r.ext.live {
			r.ext, r.sched = w.newExtender(r), nil
		}
	})
}

// frozen has the leader stop for longer than the Lease lasts, in a burst of pods and before a
// binding, and go on when another leads, or has just given the Lease back.
var frozen = fault{"the leader is frozen", func(w *World) {
	if e := w.replicas[w.leader].ext; e.live && e.plugged != nil && e.plugged.leads {
		for range 4 {
			w.create(w.newSpec())
		}
		e.plugged.freezes = true
	}
}}

// checkAlone looks at a binding that has landed: its sender has the Lease.
func (e *extenderProc) checkAlone(pod string) {
	if p := e.plugged; p != nil && e.w.api.holder != p.identity {
		e.w.violate("lead", "a binding of %s has landed that %s has sent, and %q leads", pod, p.identity, e.w.api.holder)
	}
}

// Waiting and Wake are kube-scheduler's queue, as Decider.Wake has it.
func (p *plugged) Waiting() []*v1.Pod { return cluster{p.extenderProc}.Waiting() }

// Wake has a waiting pod tried again at once.
func (p *plugged) Wake(_ context.Context, ref placement.PodRef, _ *string) error {
	w := p.w
	defer w.lock()()
	w.counts.Woken++
	if q := p.sched.queue[ref.UID]; q != nil {
		q.parked, q.until = 0, w.now()
		p.sched.wake()
	}
	return nil
}
