package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// extenderTimeout is httpTimeout, as the chart sets it.
const extenderTimeout = 10 * time.Second

// replica is one pod of the scheduler deployment: kube-scheduler and the
// extender beside it, two containers that crash each on its own.
type replica struct {
	name    string
	samples bool // its kube-scheduler asks about some of the nodes alone
	ext     *extenderProc
	sched   *scheduler // nil unless it leads
}

// scheduler is a model of kube-scheduler: one scheduling cycle at a time, bindings
// meanwhile, its own account of what is on the nodes, and a queue (queue.go).
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
	next    int                // the node that it looks at first

	own    *plugged         // gpumem is within; nil: an extender is asked
	ending bool             // it was told to end: it begins no cycle
	infos  map[string]*info // nodes as they were last looked at; where gpumem is within
	made   int64            // generations of nodes
}

type assumed struct {
	node string
	need amount
	pod  *v1.Pod // with the node in it; where gpumem is within
}

// startScheduler has a replica lead: a new process has the Lease, under a name of its
// own, and an empty queue.
func (w *World) startScheduler(r *replica) {
	w.serial++
	w.api.holder = fmt.Sprintf("%s_%d", r.name, w.serial)
	w.api.bump()
	r.sched = w.beside(r)
	clear(w.live.waits)
}

func newScheduler(w *World, p *process, r *replica) *scheduler {
	return &scheduler{
		process: p, w: w, replica: r,
		assumed: make(map[string]assumed), queue: make(map[string]*queued), infos: make(map[string]*info),
	}
}

// beside makes a kube-scheduler of its own process.
func (w *World) beside(r *replica) *scheduler {
	s := newScheduler(w, w.newProcess(r.name+" scheduler"), r)
	s.pods = w.api.watchPods(s.process, s.name+" pods", s.podHandler(), notTerminal)
	s.nodes = w.api.watchNodes(s.process, s.name+" nodes", s.nodeHandler(), func(*v1.Node) bool { return true })
	s.pods.after, s.nodes.after = s.wake, s.wake
	return s
}

func (s *scheduler) podHandler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.added(o.(*v1.Pod)) },
		UpdateFunc: func(old, now any) { s.updated(old.(*v1.Pod), now.(*v1.Pod)) },
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			s.deleted(o.(*v1.Pod))
		},
	}
}

func (s *scheduler) nodeHandler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.move(happening{what: nodeAdded, node: o.(*v1.Node)}) },
		UpdateFunc: func(old, now any) { s.nodeUpdated(old.(*v1.Node), now.(*v1.Node)) },
		DeleteFunc: func(any) { s.move(happening{what: nodeDeleted}) },
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

// cycle schedules one pod, if one waits.
func (s *scheduler) cycle() {
	w := s.w
	if !s.pods.synced || !s.nodes.synced || s.trying != "" {
		return // the lists wake it, and the end of the cycle does
	}
	if s.own != nil && (!s.own.leads || s.ending) {
		return // the lead wakes it
	}
	for uid, a := range s.assumed {
		if pod := s.pods.store[w.pods[uid].name]; pod != nil && string(pod.UID) == uid && pod.Spec.NodeName == a.node {
			delete(s.assumed, uid)
		}
	}
	ready, soonest := s.ready()
	switch {
	case len(ready) > 0:
		pod := pick(w.rng, ready)
		s.trying = string(pod.UID)
		s.queue[s.trying].begin()
		w.spawn(func() {
			if s.own != nil {
				s.decide(pod)
			} else {
				s.schedule(pod)
			}
			s.trying = ""
			s.wake()
		})
	case soonest > 0:
		s.cycleIn(soonest - w.now() + tick)
	}
}

// schedule is one cycle, in a coroutine.
func (s *scheduler) schedule(pod *v1.Pod) {
	w, uid := s.w, string(pod.UID)
	p := w.pods[uid]
	names, no, err := s.findNodes(p, pod)
	if err != nil {
		s.failed(uid, err.Error())
		return
	}
	if len(names) == 0 {
		s.refused(pod, no)
		s.preempt(pod, no)
		return
	}
	if len(names) > 1 {
		if names, err = s.best(s.replica.ext, pod, names); err != nil {
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

// refusal is why a pod fits nowhere.
type refusal struct {
	nodes    map[string]string // those that were looked at, and an eviction may help on; and why
	extender bool              // gpumem has refused some
	sum      bool              // some have too little in all
	final    []string          // nodes on which no eviction helps; where gpumem is within
}

// findNodes finds nodes for a pod: the one that it is nominated to, if it fits
// there, or else of so many as kube-scheduler looks for those on which the extender
// has it fit.
func (s *scheduler) findNodes(p *spec, pod *v1.Pod) ([]string, refusal, error) {
	no := refusal{nodes: make(map[string]string)}
	if node := s.nodes.store[pod.Status.NominatedNodeName]; node != nil && s.fits(p, pod, node) {
		if names, err := s.ask(pod, []string{node.Name}, &no); err != nil || len(names) > 0 {
			return names, no, err
		}
		no = refusal{nodes: make(map[string]string)} // of the cycle itself
	}
	names := s.scan(func(node *v1.Node) bool {
		fits := s.fits(p, pod, node)
		if !fits {
			no.nodes[node.Name] = "it has too little in all"
		}
		return fits
	})
	if len(names) == 0 {
		return nil, no, nil
	}
	names, err := s.ask(pod, names, &no)
	return names, no, err
}

// scan looks at nodes, from where it was last, until so many fit as kube-scheduler looks for.
func (s *scheduler) scan(fits func(*v1.Node) bool) (names []string) {
	all, enough := sorted(s.nodes.store), s.replica.nodesToFind(len(s.nodes.store))
	looked := 0
	for ; looked < len(all) && len(names) < enough; looked++ {
		if node := all[(s.next+looked)%len(all)]; fits(node) {
			names = append(names, node.Name)
		}
	}
	if len(all) > 0 {
		s.next = (s.next + looked) % len(all)
	}
	return names
}

// kubeScheduler says which kind a replica has.
func (w *World) kubeScheduler(r *replica) string {
	out := "kube-scheduler without hints"
	switch {
	case w.cfg.Mode == inProcess:
		out = "gpumem-scheduler"
	case w.cfg.Eager:
		out = "kube-scheduler with hints, eager"
	case w.cfg.Hints:
		out = "kube-scheduler with hints"
	}
	if r.samples {
		out += ", that samples"
	}
	return out
}

// nodesToFind is how many nodes kube-scheduler looks for: all that the pod fits by
// its own filters, if its configuration says 100 per cent, or else a hundred at
// least, which are four of nine, and one of two, in small clusters here.
func (r *replica) nodesToFind(all int) int {
	const atLeast = 100
	switch {
	case !r.samples:
		return all
	case all <= few:
		return (4*all + few - 1) / few
	}
	return min(all, max(atLeast, all*max(5, 50-all/125)/100))
}

// ask asks the extender about nodes, and notes which it refuses. A sample without the node that the pod fits
// costs it one more back-off, unless the pod is nominated to a node already.
func (s *scheduler) ask(pod *v1.Pod, names []string, no *refusal) ([]string, error) {
	if wait := s.w.live.waits[string(pod.UID)]; wait != nil && s.replica.samples && pod.Status.NominatedNodeName == "" && !slices.Contains(names, wait.on) {
		wait.heard = s.w.now()
	}
	result, err := s.replica.ext.filter(s, pod, names)
	if err != nil || result.Error != "" {
		return nil, errors.New("the extender does not answer")
	}
	fitting := *result.NodeNames
	no.extender = len(fitting) < len(names)
	maps.Copy(no.nodes, result.FailedNodes)
	if len(fitting) == 0 {
		s.w.logf("  filter: %v %v", result.FailedNodes, result.FailedAndUnresolvableNodes)
	}
	return fitting, nil
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
		_, under := s.assumed[string(other.UID)] // counted below
		nominated := other.Spec.NodeName == "" && other.Status.NominatedNodeName == node.Name && !under
		switch {
		case other == pod || slices.Contains(gone, other):
		case other.Spec.NodeName == node.Name, nominated && other.UID != pod.UID && s.w.pods[string(other.UID)].before(p):
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
func (s *scheduler) preempt(pod *v1.Pod, no refusal) {
	w, ext := s.w, s.replica.ext
	if !w.pods[string(pod.UID)].priority || w.api.down || s.evicting(pod) {
		return
	}
	proposed := make(map[string]*extenderv1.MetaVictims)
	for name := range no.nodes {
		node := s.nodes.store[name]
		if node == nil {
			continue // it is gone
		}
		fit := func(gone []*v1.Pod) bool { return s.fits(w.pods[string(pod.UID)], pod, node, gone...) }
		if victims := s.victims(node, fit); len(victims) > 0 {
			proposed[name] = &extenderv1.MetaVictims{}
			for _, v := range victims {
				proposed[name].Pods = append(proposed[name].Pods, &extenderv1.MetaPod{UID: string(v.UID)})
			}
		}
	}
	nominated := ""
	var victims []types.UID
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
		names := slices.Sorted(maps.Keys(answer))
		if len(names) == 0 {
			return // the nomination remains: only kube-scheduler's own search removes it
		}
		nominated = pick(w.rng, names)
		for _, v := range answer[nominated].Pods {
			victims = append(victims, podUID(v.UID))
		}
	}
	s.evict(pod, nominated, victims)
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

// victims returns the pods to evict from a node for another pod, or nil if evictions do not help. All less
// important pods leave, and return one after the other where the pod still fits, the oldest first.
func (s *scheduler) victims(node *v1.Node, fit func(gone []*v1.Pod) bool) []*v1.Pod {
	gone := slices.DeleteFunc(sorted(s.pods.store), func(o *v1.Pod) bool {
		return o.Spec.NodeName != node.Name || s.w.pods[string(o.UID)].priority
	})
	if len(gone) == 0 || !fit(gone) {
		return nil
	}
	slices.SortStableFunc(gone, func(a, b *v1.Pod) int { return started(a).Compare(started(b)) })
	for _, o := range slices.Clone(gone) {
		if without := slices.DeleteFunc(slices.Clone(gone), func(g *v1.Pod) bool { return g == o }); fit(without) {
			gone = without
		}
	}
	return gone
}

// evict deletes the victims on a node and nominates the pod to it. Without a node it removes the nomination.
func (s *scheduler) evict(pod *v1.Pod, node string, victims []types.UID) {
	w := s.w
	for _, uid := range victims {
		victim := w.pods[string(uid)]
		if victim.priority {
			w.violate("preempt", "%s would have %s evicted for %s, which is not more important", s.replica.ext.name, victim.name, pod.Name)
		}
		w.logf("  %s: %s is to make room for %s on %s", s.name, victim.name, pod.Name, node)
		_ = w.api.deletePod(victim.name, uid, true) // it may be gone
	}
	if node != pod.Status.NominatedNodeName {
		_ = w.api.changePod(pod.Name, pod.UID, func(p *v1.Pod) { p.Status.NominatedNodeName = node }) // or it is gone
	}
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
		s.move(happening{what: podDeleted}) // for others it is as if a pod had been deleted
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
