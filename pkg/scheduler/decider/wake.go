package decider

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
)

const (
	// WakeAfter is the time that kube-scheduler has to try a pod that fits by now of its own accord.
	WakeAfter = time.Second
	// Remembered is the time for which a refused pod is remembered. The leading kube-scheduler
	// tries each waiting pod every five minutes.
	Remembered = 10 * time.Minute
	// unheard is how much later than kube-scheduler's this watch may show a pod.
	unheard = time.Minute
	// longestPause bounds the pause after a pod was woken in vain.
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

// waiting is a pod that fits on no node by the last answer. Its fields are not changed: an update
// replaces it.
type waiting struct {
	cache.Question
	at        time.Time     // of the answer
	asked     cache.NodeSet // the nodes of the answer
	count     int           // of them
	sampled   bool          // kube-scheduler has left out nodes
	elsewhere bool          // the pod may have been bound to another node, so the nodes have refused it for that alone

	temporary []string  // the nodes that refuse the pod for a moment alone
	since     time.Time // all refusals were temporary

	seen      uint64    // changes of the cache up to which it was looked at
	fits      string    // a node on which it fits by now; empty: there is none
	fitsSince time.Time // it was first seen to fit on some
	woken     bool      // since the answer
	tries     int       // to wake it
	next      time.Time // not before
}

// isTemporary reports whether the pod fits a node in a moment, without an eviction.
func (p *waiting) isTemporary(now time.Time) bool {
	return p != nil && len(p.temporary) > 0 && now.Sub(p.since) < temporary
}

// queuesOn returns the node on which the pod is to go before others; empty: on none.
func (p *waiting) queuesOn(now time.Time) string {
	if !p.isTemporary(now) || now.Sub(p.since) < queueAfter {
		return ""
	}
	return p.temporary[0]
}

// waiters are the waiting pods, by UID. The zero value is ready.
type waiters struct {
	mu   sync.Mutex
	pods map[string]*waiting

	// These are Wake's.
	begun bool   // the pods that waited at the first look are known
	seen  uint64 // changes of the cache up to which the pods were looked at
}

// get returns a waiting pod; nil: the last answer was no refusal by all nodes.
func (w *waiters) get(uid string) *waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[uid]
}

// all returns the waiting pods by UID.
func (w *waiters) all() map[string]*waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.pods)
}

// add records that a pod waits.
func (w *waiters) add(p *waiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.since = p.at
	if last := w.pods[p.Pod.UID]; last != nil {
		p.tries, p.next = last.tries, last.next
		if len(last.temporary) > 0 && len(p.temporary) > 0 {
			p.since = last.since
			if slices.Contains(p.temporary, last.temporary[0]) {
				p.temporary = last.temporary[:1] // it still waits there
			}
		}
	}
	w.put(p)
}

// put stores a pod; the lock is the caller's.
func (w *waiters) put(p *waiting) {
	if w.pods == nil {
		w.pods = make(map[string]*waiting)
	}
	w.pods[p.Pod.UID] = p
}

// remove records that the last refusal of a pod has lost its meaning.
func (w *waiters) remove(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

// update replaces a waiting pod, or nothing. Where the pod was refused again meanwhile, it records
// only the tries.
func (w *waiters) update(was, is *waiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch current := w.pods[is.Pod.UID]; current {
	case was:
		w.put(is)
	case nil: // it fits since
	default:
		again := *current
		again.tries, again.next = is.tries, is.next
		w.put(&again)
	}
}

// Wake has kube-scheduler try those waiting pods again that fit by now on a node of the question.
// kube-scheduler tries them itself when it learns of a change that may help. But it may learn of
// the change before the cache does, and it never learns of some, as when it left out the node
// because it looks at some nodes only. A pod that temporary refusals have kept waiting for long is
// put first in line. Wake is to be called about once a second, and not by several goroutines at once.
func (d *Decider) Wake(ctx context.Context, queue Queue) {
	d.Cache.Expire(d.Now())
	if d.Missing() != "" || !d.MayLead() {
		return // kube-scheduler works off no queue here
	}
	w := &d.waiters
	if !w.begun {
		d.takeOver(queue)
		w.begun = true
	}
	changed, seen := d.Cache.ChangedSince(w.seen)
	pods := w.all()
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		last := pods[uid]
		pod := d.Cluster.Pod(last.Pod.Namespace, last.Pod.Name)
		switch known := pod != nil && string(pod.UID) == uid; {
		case !known && d.Now().Sub(last.at) < unheard:
			continue // the watch may not have shown it yet
		case !known || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || d.Now().Sub(last.at) > Remembered:
			w.remove(uid)
			continue
		}
		if _, _, known := d.Cache.PodNode(uid); known {
			continue // it may be bound, and goes nowhere else until that is known
		}
		d.Cache.QueuePod(last.queuesOn(d.Now()), last.Pod, last.Request, last.since, last.since.Add(temporary))
		nodes := changed
		if last.seen != w.seen {
			nodes, _ = d.Cache.ChangedSince(last.seen)
		}
		p := *last
		p.seen = seen
		p.look(d.Cache, nodes, d.Now())
		if p.due(d.Now()) {
			d.wake(ctx, &p, queue)
		}
		w.update(last, &p)
	}
	w.seen = seen
}

// takeOver records the pods that kube-scheduler has found no node for already: the process that
// refused them may have ended since. It is not known which nodes that process refused, so all count.
func (d *Decider) takeOver(queue Queue) {
	names, _ := d.Cache.ChangedSince(0)
	all := d.Cache.Set(slices.Values(names))
	for _, pod := range queue.Waiting() {
		ref := api.Ref(pod)
		if req, err := d.Names.Request(pod); err == nil && api.FitsNowhere(pod) {
			d.waiters.update(nil, &waiting{Question: cache.NewQuestion(ref, req, d.Policies.GPU), at: d.Now(), asked: all, count: len(names)})
		}
	}
}

// wake has kube-scheduler try a pod again. The pause grows with each try in vain.
func (d *Decider) wake(ctx context.Context, p *waiting, queue Queue) {
	log := d.Log.With(zap.Stringer("pod", p.Pod), zap.String("uid", p.Pod.UID), zap.String("node", p.fits))
	now := d.Now()
	p.tries++
	if err := queue.Wake(ctx, p.Pod); err != nil {
		p.next = now.Add(min(WakeAfter<<min(p.tries, 10), longestPause))
		log.Warn("the pod fits by now, and kube-scheduler cannot be made to try it again", zap.Error(err))
		return
	}
	_, all := d.Cache.Changes()
	if extra := p.tries - 4*(all/max(1, p.count)+1); extra > 0 {
		p.next = now.Add(min(WakeAfter<<min(extra, 10), longestPause))
	}
	p.woken = true
	log.Info("the pod fits by now: kube-scheduler is made to try it again")
}

// look finds out whether the pod fits by now on a node that has refused it, among those that
// have changed. Of a sample, any node counts.
func (p *waiting) look(c *cache.Cache, changed []string, now time.Time) {
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
		p.fitsSince = time.Time{}
	case p.fitsSince.IsZero():
		p.fitsSince = now
	}
}

// due reports whether the pod is to be woken.
func (p *waiting) due(now time.Time) bool {
	return p.fits != "" && !p.woken && now.Sub(p.fitsSince) >= WakeAfter && !now.Before(p.next)
}
