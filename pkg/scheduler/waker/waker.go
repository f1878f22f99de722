package waker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
)

const (
	// After is how long kube-scheduler has to ask again of its own accord about a
	// pod that has begun to fit.
	After = time.Second
	// Remembered is how long a pod is remembered about which kube-scheduler does not
	// ask any more. The one that leads asks about each waiting pod every five minutes.
	Remembered = 10 * time.Minute
	// unheard is how much later than kube-scheduler's this watch may tell of a pod.
	unheard = time.Minute
	// longestPause is how long a pod is left alone at most that was woken in vain.
	longestPause = time.Minute
	// queueAfter is how long temporary refusals must have kept a pod waiting for it to go
	// before others: most end earlier, and the others lose time.
	queueAfter = 2 * time.Second
	// temporary is how long refusals count as temporary: by then something does not end.
	temporary = time.Minute
)

// Queue is the pods that wait at kube-scheduler.
type Queue interface {
	// Waiting returns the pods that ask for GPU memory and have no node, as the watch
	// last showed them.
	Waiting() []*v1.Pod
	// Wake has kube-scheduler try a waiting pod again.
	Wake(ctx context.Context, pod placement.PodRef) error
}

// Refusal is an answer that a pod fits nowhere.
type Refusal struct {
	cache.Question
	At      time.Time
	Changes uint64        // of the cache, before it
	Asked   cache.NodeSet // the nodes that it is about
	Count   int           // of them
	Sampled bool          // kube-scheduler has left out nodes

	Elsewhere bool // the pod may have been bound to another node: what the nodes have says nothing of why

	Temporary []string  // the nodes that refuse the pod for a moment alone
	since     time.Time // all refusals were temporary
}

// isTemporary reports whether the pod fits a node in a moment, without an eviction.
func (r *Refusal) isTemporary(now time.Time) bool {
	return len(r.Temporary) > 0 && now.Sub(r.since) < temporary
}

// Waker wakes pods. Refused and Answered may be called by several goroutines.
type Waker struct {
	mu      sync.Mutex
	refused map[string]*Refusal // the last of each pod, by UID

	begun bool // the pods that waited at the first look are known
	pods  map[string]*hopeful
	seen  uint64 // changes of the cache up to which the pods were looked at
}

// queuesOn returns the node on which the pod is to go before others; empty: on none.
func (r *Refusal) queuesOn(now time.Time) string {
	if !r.isTemporary(now) || now.Sub(r.since) < queueAfter {
		return ""
	}
	return r.Temporary[0]
}

// Refused takes note that a pod fits nowhere.
func (w *Waker) Refused(r *Refusal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.refused[r.Pod.UID]
	r.since = r.At
	if last != nil && len(last.Temporary) > 0 && len(r.Temporary) > 0 {
		r.since = last.since
		if slices.Contains(r.Temporary, last.Temporary[0]) {
			r.Temporary = last.Temporary[:1] // it goes on to wait there
		}
	}
	w.note(r)
}

// Waits reports whether the last refusal of a pod is temporary, so that nothing is to be evicted for it.
func (w *Waker) Waits(uid string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.refused[uid]
	return ok && r.isTemporary(now)
}

func (w *Waker) note(r *Refusal) {
	if w.refused == nil {
		w.refused = make(map[string]*Refusal)
	}
	w.refused[r.Pod.UID] = r
}

// Answered takes note that the last refusal of a pod counts no more.
func (w *Waker) Answered(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.refused, uid)
}

// inherited takes note of what another has answered, unless Refused was called since.
func (w *Waker) inherited(r *Refusal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.refused[r.Pod.UID]; !ok {
		w.note(r)
	}
}

// all returns the last refusals by the UIDs of the pods.
func (w *Waker) all() map[string]*Refusal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.refused)
}

// hopeful is a pod that waits.
type hopeful struct {
	*Refusal           // the last
	seen     uint64    // changes of the cache up to which it was looked at
	fits     string    // a node on which it fits by now; empty: there is none
	since    time.Time // it was first seen to fit on some
	woken    bool      // since the refusal

	tries int       // how often it was woken, or could not be
	next  time.Time // not before
}

// Wake has kube-scheduler try those pods again that fit nowhere by its answers, and
// that have begun to fit since on a node that it asked about. It tries them itself when it
// hears of something that may help. But it may hear of that before the cache does, and
// of some things it does not hear, as when it left out the node because it looks at some
// nodes only. A pod that has been refused for long for a moment alone, it puts first in line.
// Wake is to be called about once a second, and not by several goroutines at once.
func (w *Waker) Wake(ctx context.Context, b *binder.Binder, queue Queue) {
	b.Cache.Expire(b.Now())
	if b.Missing() != "" || !b.MayLead() {
		return // kube-scheduler works off no queue here
	}
	if !w.begun {
		w.takeOver(b, queue)
		w.begun = true
	}
	refused := w.all()
	before := w.seen
	changed, seen := b.Cache.ChangedSince(before)
	for _, uid := range slices.Sorted(maps.Keys(refused)) {
		last := refused[uid]
		pod := b.Cluster.Pod(last.Pod.Namespace, last.Pod.Name)
		switch known := pod != nil && string(pod.UID) == uid; {
		case !known && b.Now().Sub(last.At) < unheard:
			continue // the watch may not have shown it yet
		case !known || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || b.Now().Sub(last.At) > Remembered:
			w.Answered(uid)
			continue
		}
		if _, _, known := b.Cache.Where(uid); known {
			continue // it may be bound, and goes nowhere else until that is known
		}
		b.Cache.QueuePod(last.queuesOn(b.Now()), last.Pod, last.Request, last.since, last.since.Add(temporary))
		p := w.of(uid, last)
		nodes := changed
		if p.seen != before {
			nodes, _ = b.Cache.ChangedSince(p.seen)
		}
		p.seen = seen
		p.look(b.Cache, nodes, b.Now())
		if now := b.Now(); p.due(now) {
			p.wake(ctx, b, queue, now)
		}
	}
	maps.DeleteFunc(w.pods, func(uid string, _ *hopeful) bool { _, waits := refused[uid]; return !waits })
	w.seen = seen
}

// takeOver has those pods looked after that kube-scheduler has found no node for already: the
// process that refused them may have ended since. Which nodes it refused is not known, so
// all count.
func (w *Waker) takeOver(b *binder.Binder, queue Queue) {
	names, _ := b.Cache.ChangedSince(0)
	all := b.Cache.Set(slices.Values(names))
	for _, pod := range queue.Waiting() {
		if req, err := b.Names.Request(pod); err == nil && api.FitsNowhere(pod) {
			w.inherited(&Refusal{Question: cache.NewQuestion(api.Ref(pod), req, b.Policies.GPU), At: b.Now(), Asked: all, Count: len(names)})
		}
	}
}

// wake has kube-scheduler try a pod again. One that could not be woken, or that goes on to
// wait, is left alone for longer each time.
func (p *hopeful) wake(ctx context.Context, b *binder.Binder, queue Queue, now time.Time) {
	log := b.Log.With(zap.Stringer("pod", p.Pod), zap.String("uid", p.Pod.UID), zap.String("node", p.fits))
	p.tries++
	if err := queue.Wake(ctx, p.Pod); err != nil {
		p.next = now.Add(min(After<<min(p.tries, 10), longestPause))
		log.Warn("the pod fits by now, and kube-scheduler cannot be made to try it again", zap.Error(err))
		return
	}
	_, all := b.Cache.Changes()
	if extra := p.tries - 4*(all/max(1, p.Count)+1); extra > 0 {
		p.next = now.Add(min(After<<min(extra, 10), longestPause))
	}
	p.woken = true
	log.Info("the pod fits by now: kube-scheduler is made to try it again")
}

// of returns what is known of a pod, after its last refusal.
func (w *Waker) of(uid string, last *Refusal) *hopeful {
	p, ok := w.pods[uid]
	switch {
	case !ok:
		p = &hopeful{Refusal: last, seen: last.Changes}
		if w.pods == nil {
			w.pods = make(map[string]*hopeful)
		}
		w.pods[uid] = p
	case p.Refusal != last:
		*p = hopeful{Refusal: last, seen: last.Changes, tries: p.tries, next: p.next}
	}
	return p
}

// look finds out whether the pod fits by now on a node that it was refused, of those that
// have changed. Of a sample, any node counts.
func (p *hopeful) look(c *cache.Cache, changed []string, now time.Time) {
	fits := func(name string) bool {
		return (p.Sampled || c.Has(p.Asked, name)) && c.Refused(name, p.Question) == nil
	}
	if p.fits != "" && fits(p.fits) {
		return
	}
	if p.fits != "" || p.Sampled || p.Elsewhere {
		changed, _ = c.ChangedSince(0) // there may be others
	}
	p.fits = ""
	if i := slices.IndexFunc(changed, fits); i >= 0 {
		p.fits = changed[i]
	}
	switch {
	case p.fits == "":
		p.since = time.Time{}
	case p.since.IsZero():
		p.since = now
	}
}

// due reports whether the pod is to be woken.
func (p *hopeful) due(now time.Time) bool {
	return p.fits != "" && !p.woken && now.Sub(p.since) >= After && !now.Before(p.next)
}
