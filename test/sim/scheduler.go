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
// bindings beside it, and its own account of what is on the nodes.
type scheduler struct {
	*process
	w       *World
	replica *replica
	pods    *informer[*v1.Pod]
	nodes   *informer[*v1.Node]
	assumed map[string]assumed       // by UID
	retry   map[string]time.Duration // not before, by UID
	backoff map[string]time.Duration
	due     time.Duration // when the next cycle is
}

type assumed struct {
	node string
	need int
}

func (w *World) newScheduler(r *replica) *scheduler {
	s := &scheduler{
		process: w.newProcess(r.name + " scheduler"), w: w, replica: r,
		assumed: make(map[string]assumed), retry: make(map[string]time.Duration), backoff: make(map[string]time.Duration),
	}
	s.pods = w.api.watchPods(s.process, s.name+" pods", toolscache.ResourceEventHandlerFuncs{}, notTerminal)
	s.nodes = w.api.watchNodes(s.process, s.name+" nodes", toolscache.ResourceEventHandlerFuncs{}, func(*v1.Node) bool { return true })
	s.pods.after, s.nodes.after = s.wake, s.wake
	return s
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

// cycle schedules one pod, if one waits.
func (s *scheduler) cycle() {
	w := s.w
	if !s.pods.synced || !s.nodes.synced {
		return // the lists wake it
	}
	for uid, a := range s.assumed {
		if pod := s.pods.store[w.pods[uid].name]; pod == nil || string(pod.UID) != uid || pod.Spec.NodeName == a.node {
			if s.pods.gone[podUID(uid)] != "" || pod != nil && string(pod.UID) == uid && pod.Spec.NodeName != "" {
				delete(s.assumed, uid)
			}
		}
	}
	var ready []*v1.Pod
	soonest := time.Duration(0)
	for _, name := range slices.Sorted(maps.Keys(s.pods.store)) {
		pod := s.pods.store[name]
		uid := string(pod.UID)
		if _, under := s.assumed[uid]; under || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
			continue
		}
		if left := s.retry[uid] - w.now(); left > 0 {
			if soonest == 0 || left < soonest {
				soonest = left
			}
			continue
		}
		ready = append(ready, pod)
	}
	switch {
	case len(ready) > 0:
		s.schedule(pick(w.rng, ready))
		s.wake()
	case soonest > 0:
		s.cycleIn(soonest + tick)
	}
}

// failed puts a pod back, for longer each time.
func (s *scheduler) failed(uid, why string) {
	b := min(max(minBackoff, 2*s.backoff[uid]), maxBackoff)
	s.backoff[uid] = b
	s.retry[uid] = s.w.now() + b
	s.w.logf("  %s: %s not scheduled: %s", s.name, s.w.pods[uid].name, why)
	s.cycleIn(b + tick)
}

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
		s.failed(uid, "no node has as much in all")
		s.preempt(pod)
		return
	}
	ext := s.replica.ext
	if !ext.live || w.chance(60) {
		s.failed(uid, "the extender does not answer")
		return
	}
	result := ext.filter(pod, names)
	if result.Error != "" {
		s.failed(uid, "the extender cannot tell")
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
		s.failed(uid, "the extender refuses all nodes")
		s.preempt(pod)
		return
	}
	if len(names) > 1 {
		names = s.best(ext, pod, names)
	}
	node := pick(w.rng, names)
	if w.chance(12) {
		s.failed(uid, "another plugin refuses, or the scheduler forgets")
		return
	}
	s.assumed[uid] = assumed{node: node, need: p.need}
	w.logf("  %s: %s to %s", s.name, p.name, node)
	w.after(w.between(1*tick, 20*tick), s.process, "bind "+p.name, func() { s.bind(pod, node) })
}

func (s *scheduler) best(ext *extenderProc, pod *v1.Pod, names []string) []string {
	scores := ext.prioritize(pod, names)
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
	return top
}

// fits is the in-tree check of a node's sum, nominated pods included. Some pods
// may be taken to be gone.
func (s *scheduler) fits(p *spec, pod *v1.Pod, node *v1.Node, gone ...*v1.Pod) bool {
	q := node.Status.Allocatable[s.w.names.GPUMem()]
	free := int(q.Value()) - p.need
	for _, other := range s.pods.store {
		switch {
		case other == pod || slices.Contains(gone, other):
		case other.Spec.NodeName == node.Name, other.Spec.NodeName == "" && other.Status.NominatedNodeName == node.Name && other.UID != pod.UID && s.w.pods[string(other.UID)].priority:
			free -= s.w.pods[string(other.UID)].need
		}
	}
	for uid, a := range s.assumed {
		if other := s.pods.store[s.w.pods[uid].name]; other != nil && string(other.UID) == uid && other.Spec.NodeName == node.Name {
			continue // counted above
		}
		if a.node == node.Name {
			free -= a.need
		}
	}
	return free >= 0
}

// preempt chooses by the nodes' sums whom to evict for a pod of high priority,
// asks the extender, and evicts whom it names. The pod is nominated to the node.
func (s *scheduler) preempt(pod *v1.Pod) {
	w, ext := s.w, s.replica.ext
	if !w.pods[string(pod.UID)].priority || w.api.down || !ext.live || s.evicting(pod) {
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
		answer := ext.preempt(pod, proposed).NodeNameToMetaVictims
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
	for i := len(gone) - 1; i >= 0; i-- {
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
			delete(s.backoff, uid)
			return
		}
		delete(s.assumed, uid)
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
