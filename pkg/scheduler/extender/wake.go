package extender

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

const (
	// wakeAfter is how long kube-scheduler has to ask again of its own accord about a
	// pod that has begun to fit.
	wakeAfter = time.Second
	// remembered is how long a pod is remembered about which kube-scheduler does not
	// ask any more. The one that leads asks about each waiting pod every five minutes.
	remembered = 10 * time.Minute
	// unheard is how much later than kube-scheduler's this watch may tell of a pod.
	unheard = time.Minute
	// longestPause is how long a pod is left alone at most that was woken in vain.
	longestPause = time.Minute
)

// waiting are the pods that Filter has last refused everywhere.
type waiting struct {
	mu      sync.Mutex
	refused map[string]*refusal // by UID
}

// refusal is an answer that a pod fits nowhere.
type refusal struct {
	cache.Question
	at      time.Time
	changes uint64        // of the cache, before it
	asked   cache.NodeSet // the nodes that it is about
	count   int           // of them
	sampled bool

	elsewhere bool // the pod may have been bound to another node: what the nodes have says nothing of why
}

// answered takes note of what Filter has answered.
func (w *waiting) answered(uid string, r *refusal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r == nil {
		delete(w.refused, uid)
		return
	}
	if w.refused == nil {
		w.refused = make(map[string]*refusal)
	}
	w.refused[uid] = r
}

// inherited takes note of what another has answered, unless Filter has been asked since.
func (w *waiting) inherited(uid string, r *refusal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused == nil {
		w.refused = make(map[string]*refusal)
	}
	if _, ok := w.refused[uid]; !ok {
		w.refused[uid] = r
	}
}

// all returns the last refusals by the UIDs of the pods.
func (w *waiting) all() map[string]*refusal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.refused)
}

// waker is what WakeWaiting remembers of the waiting pods, by UID.
type waker struct {
	begun bool // the pods that waited at the first look are known
	pods  map[string]*hopeful
	seen  uint64 // changes of the cache up to which the pods were looked at
}

// hopeful is a pod that waits.
type hopeful struct {
	*refusal           // the last
	seen     uint64    // changes of the cache up to which it was looked at
	fits     string    // a node on which it fits by now; empty: there is none
	since    time.Time // it was first seen to fit on some
	woken    bool      // since the refusal

	tries int       // how often it was woken, or could not be
	next  time.Time // not before
}

// WakeWaiting has kube-scheduler try those pods again that it was told fit nowhere, and
// that have begun to fit since on a node that it asked about. It tries them itself when it
// hears of something that may make room. But it may hear of that before the cache does, and
// of some things it does not hear, as when it left out the node because it looks at some
// nodes only. WakeWaiting is to be called about once a second, and not by several
// goroutines at once.
func (e *Extender) WakeWaiting(ctx context.Context) {
	if e.Missing() != "" {
		return
	}
	if !e.waker.begun {
		e.takeOver()
		e.waker.begun = true
	}
	refused := e.waiting.all()
	before := e.waker.seen
	changed, seen := e.Cache.ChangedSince(before)
	for _, uid := range slices.Sorted(maps.Keys(refused)) {
		last := refused[uid]
		pod := e.Cluster.Pod(last.Pod.Namespace, last.Pod.Name)
		switch known := pod != nil && string(pod.UID) == uid; {
		case !known && e.Now().Sub(last.at) < unheard:
			continue // the watch may not have told of it yet
		case !known || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || e.Now().Sub(last.at) > remembered:
			e.waiting.answered(uid, nil)
			continue
		}
		if _, _, known := e.Cache.Where(uid); known {
			continue // it may be bound, and goes nowhere else until that is known
		}
		p := e.waker.of(uid, last)
		nodes := changed
		if p.seen != before {
			nodes, _ = e.Cache.ChangedSince(p.seen)
		}
		p.seen = seen
		p.look(e.Cache, nodes, e.Now())
		if now := e.Now(); p.due(now) {
			e.wake(ctx, p, now)
		}
	}
	maps.DeleteFunc(e.waker.pods, func(uid string, _ *hopeful) bool { _, waits := refused[uid]; return !waits })
	e.waker.seen = seen
}

// takeOver has those pods looked after that kube-scheduler has found no node for already: the
// extender that refused them may have ended since. Which nodes it refused is not known, so
// all count.
func (e *Extender) takeOver() {
	names, _ := e.Cache.ChangedSince(0)
	all := e.Cache.Set(slices.Values(names))
	for _, pod := range e.Cluster.Waiting() {
		if q := e.question(pod); api.FitsNowhere(pod) && q.unreadable == nil {
			e.waiting.inherited(q.Pod.UID, &refusal{Question: q.Question, at: e.Now(), asked: all, count: len(names)})
		}
	}
}

// wake has kube-scheduler try a pod again. One that could not be woken, or that goes on to
// wait, is left alone for longer each time.
func (e *Extender) wake(ctx context.Context, p *hopeful, now time.Time) {
	log := e.Log.With(zap.Stringer("pod", p.Pod), zap.String("uid", p.Pod.UID), zap.String("node", p.fits))
	p.tries++
	if err := e.Cluster.Wake(ctx, p.Pod); err != nil {
		p.next = now.Add(min(wakeAfter<<min(p.tries, 10), longestPause))
		log.Warn("the pod fits by now, and kube-scheduler cannot be made to try it again", zap.Error(err))
		return
	}
	_, all := e.Cache.Changes()
	if extra := p.tries - 4*(all/max(1, p.count)+1); extra > 0 {
		p.next = now.Add(min(wakeAfter<<min(extra, 10), longestPause))
	}
	p.woken = true
	log.Info("the pod fits by now: kube-scheduler is made to try it again")
}

// of returns what is known of a pod, after its last refusal.
func (w *waker) of(uid string, last *refusal) *hopeful {
	p, ok := w.pods[uid]
	switch {
	case !ok:
		p = &hopeful{refusal: last, seen: last.changes}
		if w.pods == nil {
			w.pods = make(map[string]*hopeful)
		}
		w.pods[uid] = p
	case p.refusal != last:
		*p = hopeful{refusal: last, seen: last.changes, tries: p.tries, next: p.next}
	}
	return p
}

// look finds out whether the pod fits by now on a node that it was refused, of those that
// have changed. Of a sample, any node counts.
func (p *hopeful) look(c *cache.Cache, changed []string, now time.Time) {
	fits := func(name string) bool {
		return (p.sampled || c.Has(p.asked, name)) && c.Refused(name, p.Question) == nil
	}
	if p.fits != "" && fits(p.fits) {
		return
	}
	if p.fits != "" || p.sampled || p.elsewhere {
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
	return p.fits != "" && !p.woken && now.Sub(p.since) >= wakeAfter && !now.Before(p.next)
}
