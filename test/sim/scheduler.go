package sim

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// What kube-scheduler does with its extender.
const (
	extenderTimeout = 10 * time.Second // httpTimeout, as the chart sets it
	minBackoff      = time.Second
	maxBackoff      = 10 * time.Second
)

// replica is one pod of the scheduler deployment: kube-scheduler and the
// extender beside it, two containers that crash each on its own.
type replica struct {
	name  string
	ext   *extenderProc
	sched *scheduler // nil unless it leads
}

// scheduler is a model of kube-scheduler: one scheduling cycle at a time,
// bindings beside it, its own account of what is on the nodes, and a queue. A pod
// that fits nowhere is tried again when its watches tell of something
// (pkg/scheduler/eventhandlers.go), or after minutes.
type scheduler struct {
	*process
	w       *World
	replica *replica
	pods    *informer[*v1.Pod]
	nodes   *informer[*v1.Node]
	assumed map[string]assumed // by UID
	queue   map[string]*queued // the same: pods without a node, but for those that are assumed
	trying  string             // the UID of the pod whose cycle is under way
	due     time.Duration      // when the next cycle is
}

type assumed struct {
	node string
	need amount
}

// queued is a pod in the queue.
type queued struct {
	parked  time.Duration // since when it is among those that fit nowhere; 0: it is not
	errors  bool          // it was put back by an error: its back-off has to pass
	until   time.Duration // the back-off
	backoff time.Duration
	moved   bool // something has happened since its cycle began
}

// parkedFor is how long a pod waits for something to happen.
const parkedFor = 5 * time.Minute

func (w *World) newScheduler(r *replica) *scheduler {
	s := &scheduler{
		process: w.newProcess(r.name + " scheduler"), w: w, replica: r,
		assumed: make(map[string]assumed), queue: make(map[string]*queued),
	}
	s.pods = w.api.watchPods(s.process, s.name+" pods", toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.added(o.(*v1.Pod)) },
		UpdateFunc: func(old, now any) { s.updated(old.(*v1.Pod), now.(*v1.Pod)) },
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			s.deleted(o.(*v1.Pod))
		},
	}, notTerminal)
	s.nodes = w.api.watchNodes(s.process, s.name+" nodes", toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.move() },
		UpdateFunc: func(any, any) { s.move() },
		DeleteFunc: func(any) { s.move() },
	}, func(*v1.Node) bool { return true })
	s.pods.after, s.nodes.after = s.wake, s.wake
	return s
}

func (s *scheduler) added(pod *v1.Pod) {
	if pod.Spec.NodeName != "" {
		s.move()
	} else {
		s.queue[string(pod.UID)] = &queued{}
	}
}

func (s *scheduler) updated(old, now *v1.Pod) {
	switch {
	case old.UID != now.UID:
		s.deleted(old)
		s.added(now)
	case now == old:
	case now.Spec.NodeName != "":
		delete(s.queue, string(now.UID))
		s.move()
	case old.Status.NominatedNodeName != "" && old.Status.NominatedNodeName != now.Status.NominatedNodeName:
		s.move()
	}
}

func (s *scheduler) deleted(pod *v1.Pod) {
	uid := string(pod.UID)
	delete(s.queue, uid)
	_, under := s.assumed[uid]
	if delete(s.assumed, uid); under || pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != "" {
		s.move()
	}
}

// move has all pods tried again that fit nowhere: something has happened.
func (s *scheduler) move() {
	for _, q := range s.queue {
		q.parked, q.moved = 0, true
	}
}

// wake has a cycle run soon: something has changed.
func (s *scheduler) wake() { s.cycleIn(s.w.between(2*tick, 30*tick)) }

// cycleIn has a cycle run after a while, unless one is due before.
func (s *scheduler) cycleIn(d time.Duration) {
	at := s.w.now() + d
	if s.due > s.w.now() && s.due <= at {
		return
	}
	s.due = at
	s.w.after(d, s.process, s.name+": cycle", func() {
		if s.due == at {
			s.due = 0
			s.cycle()
		}
	})
}

// cycle schedules one pod, if one waits. One whose back-off has not passed may
// have its turn when there is no other, unless an error put it back.
func (s *scheduler) cycle() {
	w := s.w
	if !s.pods.synced || !s.nodes.synced || s.trying != "" {
		return // the lists wake it, and the end of the cycle does
	}
	for uid, a := range s.assumed {
		if pod := s.pods.store[w.pods[uid].name]; pod != nil && string(pod.UID) == uid && pod.Spec.NodeName == a.node {
			delete(s.assumed, uid)
		}
	}
	var ready []*v1.Pod
	soonest := time.Duration(0)
	for _, name := range slices.Sorted(maps.Keys(s.pods.store)) {
		pod := s.pods.store[name]
		q, ok := s.queue[string(pod.UID)]
		if _, under := s.assumed[string(pod.UID)]; !ok || under || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
			continue
		}
		at := time.Duration(0)
		switch {
		case q.parked > 0:
			at = q.parked + parkedFor
		case q.errors:
			at = q.until
		}
		if at <= w.now() {
			ready = append(ready, pod)
		} else if soonest == 0 || at < soonest {
			soonest = at
		}
	}
	switch {
	case len(ready) > 0:
		pod := pick(w.rng, ready)
		s.trying = string(pod.UID)
		s.queue[s.trying].moved = false
		w.spawn(func() {
			w.mu.Lock()
			s.schedule(pod)
			s.trying = ""
			s.wake()
			w.mu.Unlock()
		})
	case soonest > 0:
		s.cycleIn(soonest - w.now() + tick)
	}
}

// failed puts a pod back because of an error, for longer each time.
func (s *scheduler) failed(uid, why string) {
	s.w.logf("  %s: %s not scheduled: %s", s.name, s.w.pods[uid].name, why)
	if q := s.queue[uid]; q != nil {
		q.backoff = min(max(minBackoff, 2*q.backoff), maxBackoff)
		q.until, q.errors, q.parked = s.w.now()+q.backoff, true, 0
		s.cycleIn(q.backoff + tick)
	}
}

// refused puts a pod back that fits nowhere, until something happens.
func (s *scheduler) refused(uid, why string) {
	s.w.logf("  %s: %s fits nowhere: %s", s.name, s.w.pods[uid].name, why)
	if q := s.queue[uid]; q != nil {
		q.errors = false
		if !q.moved {
			q.parked = s.w.now()
		}
	}
}

// schedule is one cycle, in a coroutine.
func (s *scheduler) schedule(pod *v1.Pod) {
	w, uid := s.w, string(pod.UID)
	p := w.pods[uid]
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.nodes.store)) {
		if s.fits(p, pod, s.nodes.store[name]) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		s.refused(uid, "no node has as much in all")
		s.preempt(pod)
		return
	}
	ext, began := s.replica.ext, w.now()
	p.misled = false
	result, err := ext.filter(s, pod, names)
	if err != nil || result.Error != "" {
		s.failed(uid, "the extender does not answer")
		return
	}
	names = *result.NodeNames
	waiting := len(names) == 0 && slices.ContainsFunc(slices.Collect(maps.Values(result.FailedNodes)), waits)
	w.counts.Filters++
	if waiting {
		w.counts.FiltersThatWait++
	}
	w.noteWait(p, waiting)
	if len(names) == 0 {
		w.logf("  filter: %v %v", result.FailedNodes, result.FailedAndUnresolvableNodes)
		p.misled = ext.behind(s, began)
		s.refused(uid, "the extender refuses all nodes")
		s.preempt(pod)
		return
	}
	if len(names) > 1 {
		if names, err = s.best(ext, pod, names); err != nil {
			s.failed(uid, "the extender does not answer")
			return
		}
	}
	node := pick(w.rng, names)
	if w.chance(12) {
		s.failed(uid, "another plugin refuses, or the scheduler forgets")
		return
	}
	if q := s.queue[uid]; q == nil {
		return // it is gone
	}
	s.assumed[uid] = assumed{node: node, need: p.need}
	w.logf("  %s: %s to %s", s.name, p.name, node)
	w.after(w.between(1*tick, 20*tick), s.process, "bind "+p.name, func() { s.bind(pod, node) })
}

func (s *scheduler) best(ext *extenderProc, pod *v1.Pod, names []string) ([]string, error) {
	scores, err := ext.prioritize(s, pod, names)
	if err != nil {
		return nil, err
	}
	var top []string
	most := int64(-1)
	for _, score := range *scores {
		if score.Score > most {
			top, most = nil, score.Score
		}
		if score.Score == most {
			top = append(top, score.Host)
		}
	}
	return top, nil
}

// fits is the in-tree check of a node's sum, nominated pods included. Some pods
// may be taken to be gone.
func (s *scheduler) fits(p *spec, pod *v1.Pod, node *v1.Node, gone ...*v1.Pod) bool {
	free := s.w.allocatable(node)
	for _, other := range s.pods.store {
		switch {
		case other == pod || slices.Contains(gone, other):
		case other.Spec.NodeName == node.Name, other.Spec.NodeName == "" && other.Status.NominatedNodeName == node.Name && other.UID != pod.UID && s.w.pods[string(other.UID)].priority:
			free = free.minus(s.w.pods[string(other.UID)].need)
		}
	}
	for uid, a := range s.assumed {
		if other := s.pods.store[s.w.pods[uid].name]; other != nil && string(other.UID) == uid && other.Spec.NodeName == node.Name {
			continue // counted above
		}
		if a.node == node.Name {
			free = free.minus(a.need)
		}
	}
	return free.covers(p.need)
}

// preempt chooses by the nodes' sums whom to evict for a pod of high priority,
// asks the extender, and evicts whom it names. The pod is nominated to the node.
func (s *scheduler) preempt(pod *v1.Pod) {
	w, ext := s.w, s.replica.ext
	if !w.pods[string(pod.UID)].priority || w.api.down || s.evicting(pod) {
		return
	}
	proposed := make(map[string]*extenderv1.MetaVictims)
	for name, node := range s.nodes.store {
		if victims := s.victims(pod, node); len(victims) > 0 {
			proposed[name] = &extenderv1.MetaVictims{}
			for _, v := range victims {
				proposed[name].Pods = append(proposed[name].Pods, &extenderv1.MetaPod{UID: string(v.UID)})
			}
		}
	}
	nominated := ""
	if len(proposed) > 0 {
		result, err := ext.preempt(s, pod, proposed)
		if err != nil || w.api.down {
			return
		}
		answer := result.NodeNameToMetaVictims
		for _, name := range slices.Sorted(maps.Keys(answer)) {
			for _, v := range answer[name].Pods {
				if !s.isOn(v.UID, name) {
					w.logf("  %s: no preemption: %s is not on %s", s.name, w.pods[v.UID].name, name)
					return
				}
			}
		}
		if names := slices.Sorted(maps.Keys(answer)); len(names) > 0 {
			nominated = pick(w.rng, names)
			for _, v := range answer[nominated].Pods {
				victim := w.pods[v.UID]
				if victim.priority {
					w.violate("preempt", "%s would have %s evicted for %s, which is not more important", ext.name, victim.name, pod.Name)
				}
				w.logf("  %s: %s is to make room for %s on %s", s.name, victim.name, pod.Name, nominated)
				_ = w.api.deletePod(victim.name, podUID(v.UID), true) // it may be gone
			}
		}
	}
	if nominated != pod.Status.NominatedNodeName {
		_ = w.api.changePod(pod.Name, pod.UID, func(p *v1.Pod) { p.Status.NominatedNodeName = nominated }) // or it is gone
	}
}

// isOn reports whether the scheduler has a pod on a node. If it has not, it does
// not take an extender's answer that names the pod as a victim.
func (s *scheduler) isOn(uid, node string) bool {
	pod := s.pods.store[s.w.pods[uid].name]
	return pod != nil && string(pod.UID) == uid && pod.Spec.NodeName == node || s.assumed[uid].node == node
}

// evicting reports whether pods are leaving for this one already.
func (s *scheduler) evicting(pod *v1.Pod) bool {
	on := pod.Status.NominatedNodeName
	for _, other := range s.pods.store {
		if on != "" && other.Spec.NodeName == on && other.DeletionTimestamp != nil && !s.w.pods[string(other.UID)].priority {
			return true
		}
	}
	return false
}

// victims returns whom the node's sum wants to be evicted: nobody if it fits.
func (s *scheduler) victims(pod *v1.Pod, node *v1.Node) []*v1.Pod {
	p := s.w.pods[string(pod.UID)]
	var gone []*v1.Pod
	for _, name := range slices.Sorted(maps.Keys(s.pods.store)) {
		if other := s.pods.store[name]; other.Spec.NodeName == node.Name && !s.w.pods[string(other.UID)].priority {
			gone = append(gone, other)
		}
	}
	if !s.fits(p, pod, node, gone...) {
		return nil
	}
	for i := range slices.Backward(gone) {
		if kept := slices.Delete(slices.Clone(gone), i, i+1); s.fits(p, pod, node, kept...) {
			gone = kept
		}
	}
	return gone
}

// bind asks the extender to bind, waits for the answer for so long and believes
// it. The request goes on when the answer is no longer waited for.
func (s *scheduler) bind(pod *v1.Pod, node string) {
	w, uid, ext := s.w, string(pod.UID), s.replica.ext
	answered := false
	answer := func(problem string) {
		if answered {
			return
		}
		answered = true
		if problem == "" {
			delete(s.queue, uid)
			return
		}
		delete(s.assumed, uid)
		s.move() // for others it is as if a pod had been deleted
		s.failed(uid, problem)
	}
	if !ext.live {
		answer("the extender does not answer")
		return
	}
	lost := w.chance(20)
	ext.bind(pod, node, func(problem string) {
		if !lost {
			w.after(w.between(1*tick, 5*tick), s.process, "answer to bind "+pod.Name, func() { answer(problem) })
		}
	})
	w.after(extenderTimeout, s.process, "time-out of bind "+pod.Name, func() {
		if !answered {
			answer("the extender has not answered in time")
		}
	})
}
