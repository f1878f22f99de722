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
	"github.com/gpumem/gpumem/pkg/report/nodefilter"
)

const (
	// WakeAfter is the time for which a pod must have fitted some node before Wake requeues the pod. Until
	// then, kube-scheduler may retry the pod itself. If kube-scheduler evaluates samples, Wake does not wait:
	// a sample may lack the node, and kube-scheduler then backs off for up to ten seconds.
	WakeAfter = time.Second
	// RefusalTTL is the time after which Wake forgets a refused pod. It is twice the interval of five minutes
	// at which the leading kube-scheduler retries each waiting pod.
	RefusalTTL = 10 * time.Minute
	// maxWatchLag is the maximum lag of this process's watch behind kube-scheduler's watch.
	maxWatchLag = time.Minute
	// maxWakePause bounds the pause between two attempts to wake a pod.
	maxWakePause = time.Minute
	// queueDelay is the time after which Wake nominates a temporarily refused pod in the cache (Cache.QueuePod).
	// Most temporary refusals end earlier, and each nominated pod delays other pods.
	queueDelay = 2 * time.Second
	// maxTemporary is the time after which a pod that is likely to fit soon no longer counts as such: if it
	// waits this long, the refusals have another cause.
	maxTemporary = time.Minute
)

// Queue gives access to the pods that wait in kube-scheduler's queue.
type Queue interface {
	// Waiting returns the pods that request GPU memory and have no node, as the watch last showed them.
	Waiting() []*v1.Pod
	// Wake makes kube-scheduler try a waiting pod again. Unless nominate is nil, Wake also changes the pod's
	// nomination: to a node, which kube-scheduler tries first, or to none if the name is empty.
	Wake(ctx context.Context, pod placement.PodRef, nominate *string) error
}

// waiting describes a pod that fitted no node at its last decision. The values in waiters are immutable: add
// and update replace them.
type waiting struct {
	cache.Question
	decided   time.Time     // time of the decision
	refusing  cache.NodeSet // the nodes that refused the pod
	sampled   bool          // kube-scheduler asked about a sample of the nodes
	elsewhere bool          // the nodes refused the pod only because the pod may be bound to another node

	temporary []string  // the nodes that refuse the pod only temporarily
	since     time.Time // since then, each decision found the pod likely to fit soon; zero: the last one did not

	seen      uint64    // number of the last cache change that updateFit has evaluated
	fitNode   string    // a node that the pod fits now. It refused the pod, or the sample lacks it; empty: none
	fitsSince time.Time // time since which the pod has fitted some node
	woken     bool      // Wake has requeued the pod since the decision
	tries     int       // number of attempts to wake the pod
	next      time.Time // earliest time of the next attempt
}

// isTemporary reports whether the pod is likely to fit a node soon, without an eviction, and has been so for less
// than maxTemporary.
func (p *waiting) isTemporary(now time.Time) bool {
	return p != nil && now.Sub(p.since) < maxTemporary
}

// queuesOn returns the node to which Wake nominates the pod in the cache. It returns an empty string if no node
// refuses the pod temporarily, or if since is less than queueDelay or at least maxTemporary ago.
func (p *waiting) queuesOn(now time.Time) string {
	if len(p.temporary) == 0 || !p.isTemporary(now) || now.Sub(p.since) < queueDelay {
		return ""
	}
	return p.temporary[0]
}

// waiters contains the waiting pods by UID. The zero value is ready to use.
type waiters struct {
	mu   sync.Mutex
	pods map[string]*waiting

	// Only Wake uses these fields.
	begun bool   // takeOver has run since this process began to lead
	seen  uint64 // number of the last cache change that Wake has evaluated
}

// get returns a waiting pod. It returns nil if the pod has no record, for example because it fitted a node at
// its last decision.
func (w *waiters) get(uid string) *waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[uid]
}

// clone returns a copy of the waiting pods by UID.
func (w *waiters) clone() map[string]*waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.pods)
}

// add records a waiting pod. If the pod already has a record, p takes over its attempts and the time of the
// next attempt. If the pod was likely to fit soon in both decisions, p also takes over the start. If the first
// node of the old record still refuses the pod temporarily, p contains only this node.
func (w *waiters) add(p *waiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(p.temporary) > 0 || p.fitNode != "" {
		p.since = p.decided
	}
	if last := w.pods[p.Pod.UID]; last != nil {
		p.tries, p.next = last.tries, last.next
		if !last.since.IsZero() && !p.since.IsZero() {
			p.since = last.since
		}
		if len(last.temporary) > 0 && slices.Contains(p.temporary, last.temporary[0]) {
			p.temporary = last.temporary[:1] // Wake nominates the pod to the same node
		}
	}
	w.store(p)
}

// store stores a pod. The caller must hold the lock.
func (w *waiters) store(p *waiting) {
	if w.pods == nil {
		w.pods = make(map[string]*waiting)
	}
	w.pods[p.Pod.UID] = p
}

// remove deletes the record of a pod whose last refusal is obsolete.
func (w *waiters) remove(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

// update replaces a pod's record by next, unless the record has changed since the caller read it. Parameter
// previous is the record that the caller read, or nil if there was none. If a later refusal has replaced that
// record, update copies only the attempts and the time of the next attempt from next. If the record was
// removed meanwhile, update does nothing.
func (w *waiters) update(previous, next *waiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch current := w.pods[next.Pod.UID]; current {
	case previous:
		w.store(next)
	case nil: // the pod was removed meanwhile
	default:
		again := *current
		again.tries, again.next = next.tries, next.next
		w.store(&again)
	}
}

// Wake requeues waiting pods that now fit a node that refused them. kube-scheduler itself requeues most pods
// when an event may help. But kube-scheduler may receive the event before the cache does, and then
// gpumem refuses the pod again. kube-scheduler may also ignore the event, or evaluate a sample of the nodes
// that lacks the fitting node: Wake then nominates the pod to this node. After queueDelay of temporary
// refusals, Wake nominates a pod in the cache, so that the pod precedes others on this node. Call Wake about
// once a second, and not concurrently.
func (d *Decider) Wake(ctx context.Context, queue Queue) {
	d.Cache.Expire(d.Now())
	w := &d.waiters
	if d.Missing() != "" || !d.MayLead() {
		w.begun = false // another process may refuse pods meanwhile
		return          // kube-scheduler schedules no pods through this process
	}
	if !w.begun {
		d.takeOver(queue)
		w.begun = true
	}
	changed, seen := d.Cache.ChangedSince(w.seen)
	pods := w.clone()
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		last := pods[uid]
		pod := d.Cluster.Pod(last.Pod.Namespace, last.Pod.Name)
		switch known := pod != nil && string(pod.UID) == uid; {
		case !known && d.Now().Sub(last.decided) < maxWatchLag:
			continue // the watch may not have shown the pod yet
		case !known || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || d.Now().Sub(last.decided) > RefusalTTL:
			w.remove(uid)
			continue
		}
		if _, _, known := d.Cache.PodNode(uid); known {
			continue // the pod may be bound, and can go to no other node until the outcome is known
		}
		d.Cache.QueuePod(last.queuesOn(d.Now()), last.Pod, last.Request, last.since, last.since.Add(maxTemporary))
		nodes := changed
		if last.seen != w.seen {
			nodes, _ = d.Cache.ChangedSince(last.seen)
		}
		p := *last
		p.seen = seen
		d.updateFit(&p, pod, nodes)
		if p.isDue(d.Now(), d.isStale(&p, pod)) {
			d.wake(ctx, &p, pod, queue)
		}
		w.update(last, &p)
	}
	w.seen = seen
}

// takeOver records the pods that kube-scheduler could not schedule before this process started or began to
// lead. The nodes that refused these pods are unknown, so takeOver records all nodes as refusing.
func (d *Decider) takeOver(queue Queue) {
	names, _ := d.Cache.ChangedSince(0)
	all := d.Cache.Set(slices.Values(names))
	for _, pod := range queue.Waiting() {
		ref := api.Ref(pod)
		if req, err := d.Names.Request(pod); err == nil && api.FitsNowhere(pod) && d.waiters.get(ref.UID) == nil {
			d.waiters.update(nil, &waiting{Question: cache.NewQuestion(ref, req, d.Policies.GPU), decided: d.Now(), refusing: all})
		}
	}
}

// freeTries is the number of attempts to wake a pod before the pauses begin.
const freeTries = 4

// wake requeues a pod. If kube-scheduler evaluates samples of the nodes, wake also nominates the pod to
// fitNode, because the next sample may lack it. Other filters may exclude the node, so the pauses between
// later attempts double. After maxTemporary, wake keeps a nomination by another program, for example by a
// preemption: otherwise the pod would lose the room that its victims leave, and evict others.
func (d *Decider) wake(ctx context.Context, p *waiting, pod *v1.Pod, queue Queue) {
	log := d.Log.With(zap.Stringer("pod", p.Pod), zap.String("uid", p.Pod.UID), zap.String("node", p.fitNode))
	now := d.Now()
	p.tries++
	var nominate *string
	nominated, _, _ := api.Nomination(pod, p.Request, now)
	if d.hasNominated(pod) || p.sampled && (nominated == "" || p.isTemporary(now)) {
		nominate = &p.fitNode
	}
	err := queue.Wake(ctx, p.Pod, nominate)
	if extra := p.tries - freeTries; extra > 0 || err != nil {
		p.next = now.Add(min(WakeAfter<<max(1, min(extra, 10)), maxWakePause))
	}
	if err == nil && nominate != nil {
		// Until the watch shows the nomination, it must keep the memory from the other waiting pods.
		d.Cache.QueuePod(p.fitNode, p.Pod, p.Request, now, now.Add(queueDelay))
	}
	switch p.woken = err == nil; {
	case err != nil:
		log.Warn("the pod cannot be requeued", zap.Error(err))
	case p.fitNode == "":
		log.Info("nomination removed")
	default:
		log.Info("the pod fits by now: kube-scheduler is made to try it again")
	}
}

// isStale reports whether Wake must remove its nomination of the pod, because the pod does not fit the node any
// more, or pauses because other filters exclude the node. kube-scheduler keeps the nomination if the pod may
// evict no other pod, and reserves memory on the node.
func (d *Decider) isStale(p *waiting, pod *v1.Pod) bool {
	return d.hasNominated(pod) && (d.Now().Before(p.next) || d.Cache.Refusal(pod.Status.NominatedNodeName, p.Question) != nil)
}

// hasNominated reports whether Wake has made the present nomination of a pod.
func (d *Decider) hasNominated(pod *v1.Pod) bool { return d.Names.IsNominated(pod) }

// updateFit updates fitNode and fitsSince. If kube-scheduler asked about a sample, updateFit considers all
// nodes, and otherwise those that refused the pod. If possible, it evaluates only the nodes in changed.
func (d *Decider) updateFit(p *waiting, pod *v1.Pod, changed []string) {
	fits := func(name string) bool {
		return (d.Cache.Has(p.refusing, name) || p.sampled && !d.excludes(name, pod, p.Request)) && d.Cache.Refusal(name, p.Question) == nil
	}
	if d.hasNominated(pod) && d.Now().Before(p.next) {
		p.fitNode = "" // Wake removes the nomination (isStale)
		return
	}
	if p.fitNode != "" && fits(p.fitNode) {
		return
	}
	if p.fitNode != "" || p.elsewhere {
		changed, _ = d.Cache.ChangedSince(0) // any other node may fit now
	}
	p.fitNode = ""
	for _, name := range changed { // in no particular order
		if (p.fitNode == "" || name < p.fitNode) && fits(name) {
			p.fitNode = name
		}
	}
	switch {
	case p.fitNode == "":
		p.fitsSince = time.Time{}
	case p.fitsSince.IsZero():
		p.fitsSince = d.Now()
	}
}

// fitting returns one of the nodes that a pod fits, or an empty name if it fits none. Parameter number counts
// from the best node, which is 0, and starts again with the best node after the last one.
func (d *Decider) fitting(q cache.Question, number int) string {
	pod := d.Cluster.Pod(q.Pod.Namespace, q.Pod.Name)
	var names []string
	d.index.Walk(d.Cache, d.question(q), nil, func(n *placement.Node, _ int) bool {
		if !d.excludes(n.Name, pod, q.Request) && d.Cache.Refusal(n.Name, q) == nil {
			names = append(names, n.Name)
		}
		return len(names) <= number
	})
	if len(names) == 0 {
		return ""
	}
	return names[number%len(names)]
}

// excludes reports whether a node takes no new pods or has too little CPU, or the pod's spec excludes the node.
// kube-scheduler then keeps the pod off the node, however much GPU memory is free. A pod or node that the watch
// has not shown excludes nothing.
func (d *Decider) excludes(name string, pod *v1.Pod, req placement.Request) bool {
	if cached := d.Cache.GetNode(name); cached != nil && cached.FreeCPU() < req.CPU {
		return true
	}
	node := d.Cluster.Node(name)
	return pod != nil && node != nil &&
		(node.Spec.Unschedulable || api.NotReady(node) != nil || nodefilter.ExclusionRefusal(pod, node) != nil)
}

// isDue reports whether Wake must requeue the pod now. Parameter stale reports whether Wake must remove its
// nomination of the pod.
func (p *waiting) isDue(now time.Time, stale bool) bool {
	if p.fitNode == "" {
		return stale && !p.woken
	}
	return !p.woken && !now.Before(p.next) && (p.sampled || now.Sub(p.fitsSince) >= WakeAfter)
}
