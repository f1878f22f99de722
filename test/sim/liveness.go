package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// I10: no waiting pod fits anywhere. One that fits some node is bound within
// mayWait after kube-scheduler's back-off, once the faults are over and forgotten.

const (
	// settleTime is how long faults have their consequences: an assumption may live
	// for thirty seconds, and is looked at each five; a GPU recovers within twenty.
	settleTime = 60 * time.Second
	// mayWait is how long a pod waits at most that fits, and whose back-off has passed.
	mayWait = 5 * time.Second
	// newsTime is how long it takes until all have heard that it fits. Who has refused
	// it until then could not know, and the back-off after that counts.
	newsTime = time.Second
)

// liveness is what is known of pods that wait though they fit.
type liveness struct {
	from  time.Duration       // since when it is judged; 0: it is not
	waits map[string]*waiting // by UID
	empty map[*v1.Node]*books // nodes without pods: most are, in large fleets
}

// waiting is a pod that fits.
type waiting struct {
	since time.Duration
	until time.Duration // the end of its back-off
	on    string        // where it fits
	heard time.Duration // since when it fits there, or was left out of a sample: until all have heard of that, it may be refused
}

// watchLiveness has I10 judged from now on.
func (w *World) watchLiveness() {
	w.live = liveness{from: w.now(), waits: make(map[string]*waiting), empty: make(map[*v1.Node]*books)}
	w.checkLiveness()
	w.every(func() time.Duration { return time.Second }, nil, "a second passes", w.checkWaits)
}

// checkLiveness looks which of the waiting pods fit, by what the API server has.
func (w *World) checkLiveness() {
	if w.live.from == 0 {
		return
	}
	on := w.podsByNode()
	for uid, wait := range w.live.waits {
		s := w.pods[uid]
		if pod := w.api.pods[s.name]; pod == nil || string(pod.UID) != uid || pod.Spec.NodeName != "" {
			w.waited(s, wait)
		}
	}
	for _, pod := range sorted(w.api.pods) {
		s := w.pods[string(pod.UID)]
		if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || terminal(pod) || s.broken || s.gated {
			continue
		}
		fits := func(m *machine) bool { return w.fitsWithin(s, m, on[m.name]) }
		wait := w.live.waits[s.uid]
		if wait != nil && slices.ContainsFunc(w.machines, func(m *machine) bool { return m.name == wait.on && fits(m) }) {
			continue
		}
		at := slices.IndexFunc(w.machines, fits)
		switch {
		case at < 0:
			delete(w.live.waits, s.uid) // another has its place
		case wait == nil:
			w.live.waits[s.uid] = &waiting{since: w.now(), on: w.machines[at].name, heard: w.now()}
		default: // another has that place, and there is a new one
			wait.on, wait.heard = w.machines[at].name, w.now()
		}
	}
	w.checkWaits()
}

// waited ends the wait of a pod that fits: it is bound, or gone.
func (w *World) waited(s *spec, wait *waiting) {
	if delete(w.live.waits, s.uid); s.wasBound {
		d := w.now() - wait.since
		w.counts.Prompt++
		w.counts.Promptly += d
		w.counts.Longest = max(w.counts.Longest, d)
	}
}

// checkWaits looks for pods that have waited for too long.
func (w *World) checkWaits() {
	replica := w.replicas[w.leader]
	leader := replica.sched
	for _, uid := range slices.Sorted(maps.Keys(w.live.waits)) {
		wait, s := w.live.waits[uid], w.pods[uid]
		if leader == nil || !leader.live {
			wait.since, wait.heard = w.now(), w.now()
		}
		if leader != nil && w.now()-wait.heard <= newsTime && leader.queue[uid] != nil {
			wait.until = leader.queue[uid].until
		}
		if w.now() > max(wait.since, wait.until)+mayWait {
			w.counts.Longest = max(w.counts.Longest, w.now()-wait.since)
			w.violate("I10", "%s waits (%s), and has fitted %s for %s (%s): %s", s.name, s, wait.on, w.now()-wait.since, w.kubeScheduler(replica), leader.whyWaits(uid))
			return
		}
	}
}

// whyWaits says what the queue has of a pod.
func (s *scheduler) whyWaits(uid string) string {
	q := s.queue[uid]
	switch {
	case q == nil:
		return "it is not in the queue"
	case q.parked > 0:
		return fmt.Sprintf("refused at %s (%s)", q.parked, q.said)
	}
	return fmt.Sprintf("refused %d times (%s)", q.refused, q.said)
}

// podsByNode returns the pods that are on each node, or nominated to it.
func (w *World) podsByNode() map[string][]*v1.Pod {
	on := make(map[string][]*v1.Pod)
	for _, pod := range sorted(w.api.pods) {
		if at := pod.Spec.NodeName; at != "" && !terminal(pod) {
			on[at] = append(on[at], pod)
		} else if at := pod.Status.NominatedNodeName; at != "" && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
			on[at] = append(on[at], pod)
		}
	}
	return on
}

// fitsWithin reports whether a pod without a node fits one with these pods on it, by
// what is true, and wherever those land that have no place yet: the nominated ones
// that go before it. It does not where pods are still exchanging their GPUs, where
// one waits for the kubelet that could be taken for it, or where another has waited
// for that before.
func (w *World) fitsWithin(s *spec, m *machine, on []*v1.Pod) bool {
	node := w.api.nodes[m.name]
	if node == nil {
		return false
	}
	free := w.allocatable(node)
	if !free.covers(s.need) || w.replicas[w.leader].ext.queues(m.name, s) {
		return false
	}
	b := w.live.empty[node]
	if b == nil || len(on) > 0 {
		b = w.newBooks(node)
	}
	if len(on) == 0 && w.live.empty != nil {
		w.live.empty[node] = b
	}
	for _, pod := range on {
		o := w.pods[string(pod.UID)]
		switch {
		case o == s:
			continue
		case w.forges(o):
			return false // it may count for more than it has
		case pod.Spec.NodeName == "":
			if o.before(s) {
				free = free.minus(o.need)
				b.add(o, nil, nil)
			}
			continue
		case pod.Status.StartTime == nil && o.confusable(s) && !o.alike(s), m.exchanging(o):
			return false
		}
		free = free.minus(o.need)
		b.add(o, w.assignment(pod), w.leaving(pod))
	}
	return free.covers(s.need) && b.fitting(s) >= s.gpus
}

// queues reports whether another pod than this one goes first on a node, for it has
// waited there for others to be admitted.
func (e *extenderProc) queues(node string, s *spec) bool {
	state, ok := e.books.Node(node)
	return ok && slices.ContainsFunc(state.Nominated, func(h placement.Holding) bool { return !h.Waits.IsZero() && h.Pod.UID != s.uid })
}

// confusable reports whether the kubelet's first question for a pod may be that for
// the other.
func (s *spec) confusable(o *spec) bool {
	mine, other := s.first(), o.first()
	return mine.units == other.units || mine.cores > 0 && mine.cores == other.cores
}

// first is what the kubelet asks for first, of each resource.
func (s *spec) first() (a amount) {
	for _, c := range s.containers {
		if a.units == 0 {
			a.units = c.amount.units
		}
		if a.cores == 0 {
			a.cores = c.amount.cores
		}
	}
	return a
}
