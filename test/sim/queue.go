package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// The queue of kube-scheduler (pkg/scheduler/eventhandlers.go, backend/queue): a pod
// that fits nowhere is tried again when something has happened that may help, and
// else after minutes. What may help differs:
//
//   - With queueing hints (on since 1.32, for good since 1.34) a pod that an extender
//     has refused on some node is tried again whatever happens to nodes, to pods that
//     have one, or to itself: its status is enough, in which kube-scheduler writes why
//     it fits nowhere. One that no node had enough for in all, only when a pod has gone
//     or a node has more.
//   - Without (1.31, the oldest that gpumem runs on), a pod is tried again when one with
//     a node has gone, when a node has changed that has enough in all, and when its own
//     metadata or spec has changed. That other pods are bound, admitted or annotated
//     moves only those with an affinity to them, which no pod has here.
//
// Each refusal has a pod wait for longer, and so does each error. Since 1.33 the first
// of the two waits is cut short when there is no other pod to try.

// The defaults of KubeSchedulerConfiguration, and of --pod-max-in-unschedulable-pods-duration.
const (
	minBackoff = time.Second
	maxBackoff = 10 * time.Second
	parkedFor  = 5 * time.Minute
)

// queued is a pod in the queue.
type queued struct {
	parked  time.Duration // since when it is among those that fit nowhere; 0: it is not
	until   time.Duration // its back-off
	errors  int           // in a row: its back-off is never cut short
	refused int           // so often it was
	by      refusal       // and why, when it last was
	said    string        // what its status says of that
	during  []happening   // since its cycle began
}

// happening is an event that may have pods tried again.
type happening struct {
	what occasion
	node *v1.Node // that was added, or changed
	was  *v1.Node
	pod  *spec // that is concerned; nil: whichever

	before, after *v1.Pod // the pod to which it happens, where it is one
}

type occasion int

const (
	podBound   occasion = iota
	podChanged          // one with a node
	podDeleted          // the same, or one that was assumed or nominated
	podTouched          // a waiting pod itself: metadata or spec
	podNoted            // the same: its status
	nodeAdded
	nodeChanged
	nodeDeleted
)

// begin notes that a cycle has begun.
func (q *queued) begin() { q.parked, q.during = 0, nil }

func (s *scheduler) added(pod *v1.Pod) {
	switch {
	case pod.Spec.NodeName != "":
		s.move(happening{what: podBound})
	case len(pod.Spec.SchedulingGates) == 0:
		s.queue[string(pod.UID)] = &queued{}
	}
}

func (s *scheduler) updated(old, now *v1.Pod) {
	uid := string(now.UID)
	switch {
	case old.UID != now.UID:
		s.deleted(old)
		s.added(now)
	case now == old:
	case old.Spec.NodeName != "":
		s.move(happening{what: podChanged, before: old, after: now})
	case now.Spec.NodeName != "":
		delete(s.queue, uid)
		s.move(happening{what: podBound})
	case len(old.Spec.SchedulingGates) > len(now.Spec.SchedulingGates):
		s.added(now)
	default:
		if _, under := s.assumed[uid]; under {
			return
		}
		what := podNoted
		if !maps.Equal(old.Annotations, now.Annotations) || (old.DeletionTimestamp == nil) != (now.DeletionTimestamp == nil) {
			what = podTouched
		}
		s.move(happening{what: what, pod: s.w.pods[uid], before: old, after: now})
		if old.Status.NominatedNodeName != "" && old.Status.NominatedNodeName != now.Status.NominatedNodeName {
			s.move(happening{what: podDeleted, before: old})
		}
	}
}

func (s *scheduler) deleted(pod *v1.Pod) {
	uid := string(pod.UID)
	delete(s.queue, uid)
	_, under := s.assumed[uid]
	if delete(s.assumed, uid); under || pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != "" {
		s.move(happening{what: podDeleted, before: pod})
	}
}

// nodeUpdated tells of a change that matters to kube-scheduler.
func (s *scheduler) nodeUpdated(was, now *v1.Node) {
	if was != now && (!maps.Equal(was.Annotations, now.Annotations) || s.w.allocatable(was) != s.w.allocatable(now)) {
		s.move(happening{what: nodeChanged, node: now, was: was})
	}
}

// move has those pods tried again that fit nowhere and that an event may help.
func (s *scheduler) move(h happening) {
	for uid, q := range s.queue {
		if h.pod != nil && h.pod.uid != uid {
			continue
		}
		if uid == s.trying {
			q.during = append(q.during, h)
		} else if q.parked > 0 && s.helps(uid, q, h) {
			q.parked = 0
		}
	}
}

// helps reports whether an event has a pod tried again that fits nowhere.
func (s *scheduler) helps(uid string, q *queued, h happening) bool {
	p, w := s.w.pods[uid], s.w
	switch {
	case s.own != nil && !q.by.extender && !q.by.sum:
		return true // there was no node: no plugin has refused it, so any event has it tried again
	case s.own != nil && q.by.extender && s.helpsInside(p, h):
		return true
	case s.own != nil && !q.by.sum:
		return false
	case s.own == nil && w.cfg.Hints && q.by.extender:
		return true
	case w.cfg.Hints:
		more := func() bool { return h.was == nil || w.allocatable(h.node).exceeds(w.allocatable(h.was), p.need) }
		return h.what == podDeleted || h.node != nil && w.allocatable(h.node).covers(p.need) && more()
	}
	switch h.what {
	case podDeleted, podTouched:
		return true
	case nodeAdded, nodeChanged:
		fits := s.pods.store[p.name] != nil && s.fits(p, s.pods.store[p.name], h.node)
		return fits && (q.by.extender || h.was == nil || w.allocatable(h.node) != w.allocatable(h.was))
	case nodeDeleted:
		return q.by.extender
	case podBound, podChanged, podNoted:
	}
	return false
}

// ready returns the pods that may be tried now, or else when the next may be.
func (s *scheduler) ready() (pods []*v1.Pod, soonest time.Duration) {
	var early []*v1.Pod
	for _, pod := range sorted(s.pods.store) {
		q, ok := s.queue[string(pod.UID)]
		if _, under := s.assumed[string(pod.UID)]; !ok || under || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
			continue
		}
		at := q.until
		if q.parked > 0 {
			at = max(at, q.parked+parkedFor)
		} else if q.errors == 0 && s.w.cfg.Eager {
			early = append(early, pod)
		}
		if at <= s.w.now() {
			pods = append(pods, pod)
		} else if soonest == 0 || at < soonest {
			soonest = at
		}
	}
	if len(pods) == 0 {
		pods = early
	}
	return pods, soonest
}

// backOff puts a pod back for so long, up to the next whole second: kube-scheduler
// looks once in each.
func (q *queued) backOff(now time.Duration, times int) {
	d := min(minBackoff<<min(times-1, 10), maxBackoff)
	q.until = (now + d).Truncate(time.Second) + time.Second
}

// failed puts a pod back because of an error, for longer each time.
func (s *scheduler) failed(uid, why string) {
	s.w.logf("  %s: %s not scheduled: %s", s.name, s.w.pods[uid].name, why)
	if q := s.queue[uid]; q != nil {
		q.parked, q.by = 0, refusal{}
		q.errors++
		q.backOff(s.w.now(), q.errors)
		s.cycleIn(q.until - s.w.now() + tick)
	}
}

// refused puts a pod back that fits nowhere, until something happens, or has
// happened already since its cycle began. Why is written into its status.
func (s *scheduler) refused(pod *v1.Pod, no refusal) {
	w, uid := s.w, string(pod.UID)
	why := "no node has as much in all"
	if no.extender {
		why = "the extender refuses all nodes"
	}
	w.logf("  %s: %s fits nowhere: %s", s.name, pod.Name, why)
	q := s.queue[uid]
	if q == nil {
		return
	}
	q.errors, q.by = 0, no
	q.refused++
	q.backOff(w.now(), q.refused)
	w.checkWaits()                                                                // before the next second, in which all may have heard that the pod fits
	again := func(h happening) bool { return !w.cfg.Hints || s.helps(uid, q, h) } // without hints whatever happens
	if !slices.ContainsFunc(q.during, again) {
		q.parked = w.now()
	}
	said := no.message(len(s.nodes.store))
	if said == q.said || w.api.down {
		return
	}
	q.said = said
	_ = w.api.changePod(pod.Name, pod.UID, func(p *v1.Pod) { // or it is gone
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, Message: said}}
	})
}

// message is FitError's: so many nodes for each reason.
func (r refusal) message(all int) string {
	count := make(map[string]int)
	for _, why := range r.nodes {
		count[why]++
	}
	var out []string
	for why, n := range count {
		out = append(out, fmt.Sprintf("%d %s", n, why))
	}
	slices.Sort(out)
	return fmt.Sprintf("0/%d nodes are available: %s", all, strings.Join(out, ", "))
}
