package sim

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// kube-scheduler with gpumem in it. What is modelled here is what kube-scheduler does around a
// plugin: the snapshot of a node, the order of the points, filters with and without nominated
// pods, the dry run of preemption, and which events reach a hint.

// info is a node in a snapshot.
type info struct {
	generation int64
	pods       []*v1.Pod
}

// infoOf returns a node as kube-scheduler has it: with the pods that its watch has told of, and
// those that it has assumed. Its generation is another when its pods are.
func (s *scheduler) infoOf(name string) *info {
	var pods []*v1.Pod
	for _, pod := range sorted(s.pods.store) {
		a, under := s.assumed[string(pod.UID)]
		switch {
		case pod.Spec.NodeName == name:
			pods = append(pods, pod)
		case under && a.node == name && pod.Spec.NodeName == "":
			pods = append(pods, a.pod)
		}
	}
	last := s.infos[name]
	if last == nil || !slices.Equal(last.pods, pods) {
		last = s.infoWith(pods)
		s.infos[name] = last
	}
	return last
}

func (s *scheduler) infoWith(pods []*v1.Pod) *info {
	s.made++
	return &info{generation: s.made, pods: pods}
}

func (i *info) node(name string) decider.Node {
	return decider.Node{Name: name, Generation: i.generation, Pods: slices.Values(i.pods)}
}

// sorted returns values in the order of their keys.
func sorted[K cmp.Ordered, V any](m map[K]V) (out []V) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[key])
	}
	return out
}

// free has product code run without the world's lock. It does not block.
func (w *World) free(f func()) {
	w.mu.Unlock()
	f()
	w.mu.Lock()
}

// passes asks gpumem about a node with some pods on it, as kube-scheduler asks filters: with the
// pods that are nominated to it and go before this one, and without.
func (s *scheduler) passes(c *decider.Cycle, p *spec, name string, on *info) (refusal *decide.Refusal) {
	var nominated []*v1.Pod
	for _, other := range sorted(s.pods.store) {
		_, under := s.assumed[string(other.UID)]
		if o := s.w.pods[string(other.UID)]; o != p && !under && other.Spec.NodeName == "" && other.Status.NominatedNodeName == name && o.before(p) {
			nominated = append(nominated, other)
		}
	}
	views := []*info{on}
	if len(nominated) > 0 {
		views = []*info{s.infoWith(slices.Concat(on.pods, nominated)), on}
	}
	s.w.free(func() {
		for _, view := range views {
			if refusal = s.own.decider.Refuse(c, view.node(name)); refusal != nil {
				return
			}
		}
	})
	return refusal
}

// decide is one cycle, in a coroutine.
func (s *scheduler) decide(pod *v1.Pod) {
	w, e, uid := s.w, s.own, string(pod.UID)
	e.books.Expire(time.Now()) // the time ends nominations, not the cycle
	p, before := w.pods[uid], e.views()
	var c *decider.Cycle
	var unreadable *decide.Refusal
	var err error
	w.free(func() { c, unreadable, err = e.decider.Begin(history.Filter, pod, len(s.nodes.store)) })
	switch {
	case err != nil:
		s.failed(uid, err.Error())
		return
	case unreadable != nil:
		s.refused(pod, refusal{nodes: map[string]string{"each": unreadable.Message}, extender: true})
		return
	case c == nil:
		s.bindPlain(pod)
		return
	}
	e.books.Reprice() // which the service does beside
	names, no, refusing := s.findInside(c, p, pod)
	if len(names) > 1 {
		w.free(func() {
			e.decider.Fits(c, len(names)+c.Refused(), len(names), nil)
			e.decider.Rank(c, names, len(names))
		})
		best := int64(-1)
		for _, name := range names {
			best = max(best, c.Score(name))
		}
		names = slices.DeleteFunc(names, func(name string) bool { return c.Score(name) < best })
	}
	if !reflect.DeepEqual(before, e.views()) {
		w.violate("I7", "filters and scores of %s have changed the cache", e.name)
	}
	if len(names) == 0 {
		w.logf("  filters: %v", no.nodes)
		w.free(func() {
			var refused []decider.RefusedNode
			for _, n := range refusing {
				refused = append(refused, decider.RefusedNode{Name: n.Name, Refusal: e.decider.Refuse(c, n)})
			}
			e.decider.Unfit(c, refused)
		})
		s.refused(pod, no)
		s.evictInside(c, p, pod, no)
		return
	}
	s.reserve(c, p, pod, pick(w.rng, names))
}

// findInside finds nodes for a pod: the one that it is nominated to, if it fits there, or else the one that
// gpumem hints at, or else as many as kube-scheduler searches for. It also returns the nodes that gpumem has refused.
func (s *scheduler) findInside(c *decider.Cycle, p *spec, pod *v1.Pod) (names []string, no refusal, refusing []decider.Node) {
	fits := func(node *v1.Node) bool {
		if c.BoundNode() != "" && c.BoundNode() != node.Name {
			no.nodes[node.Name], no.extender = "it may be bound to another", true
			return false
		}
		on := s.infoOf(node.Name)
		if !s.fits(p, pod, node) {
			no.nodes[node.Name], no.sum = "it has too little in all", true
			return false
		}
		if refused := s.passes(c, p, node.Name, on); refused != nil {
			no.extender = true
			refusing = append(refusing, on.node(node.Name))
			no.nodes[node.Name] = reasons.Refusal(refused)
			if refused.Unresolvable {
				no.final = append(no.final, node.Name)
			}
			return false
		}
		return true
	}
	no.nodes = make(map[string]string)
	if node := s.nodes.store[pod.Status.NominatedNodeName]; node != nil && fits(node) {
		return []string{node.Name}, no, nil
	}
	no, refusing = refusal{nodes: make(map[string]string)}, nil // of the cycle itself
	if pod.Status.NominatedNodeName == "" && c.BoundNode() == "" {
		var hint string
		s.w.free(func() {
			hint = s.own.decider.Best(c, nil, func(name string) bool {
				s.w.mu.Lock()
				defer s.w.mu.Unlock()
				node := s.nodes.store[name]
				return node != nil && fits(node)
			}, func(equal []string) string {
				s.w.mu.Lock()
				defer s.w.mu.Unlock()
				return pick(s.w.rng, equal)
			})
		})
		if hint != "" {
			return []string{hint}, no, nil
		}
		no, refusing = refusal{nodes: make(map[string]string)}, nil
	}
	names = s.scan(fits)
	return names, no, refusing
}

// reserve has gpumem choose the GPUs. Afterwards another plugin may refuse the pod.
func (s *scheduler) reserve(c *decider.Cycle, p *spec, pod *v1.Pod, node string) {
	w, e := s.w, s.own
	if s.queue[p.uid] == nil {
		return // it is gone
	}
	assumed := assumed{node: node, need: p.need, pod: onNode(pod, node)}
	on := s.infoOf(node)
	s.assumed[p.uid] = assumed
	var err error
	w.free(func() { err = e.decider.Reserve(c, on.node(node)) })
	if err != nil {
		s.unreserve(c, p, reasons.Error(err))
		return
	}
	e.chosen(p, pod, node)
	e.reserved[p.uid] = true
	if w.chance(12) {
		s.unreserve(c, p, "another plugin refuses")
		return
	}
	w.logf("  %s: %s to %s", s.name, p.name, node)
	w.after(w.between(1*tick, 20*tick), s.process, "bind "+p.name, func() {
		w.spawn(func() {
			e.turns[p.uid] = e.since
			e.calls[p.uid]++
			w.free(func() { err = e.decider.Bind(context.Background(), c.Pod, node) })
			e.calls[p.uid]--
			delete(e.reserved, p.uid)
			e.dirty = true
			w.logf("  %s: bind %s to %s: %v", e.name, p.name, node, err)
			if err != nil {
				s.unreserve(c, p, err.Error())
			} else {
				delete(s.queue, p.uid)
			}
			if _, assumed, ok := e.books.PodNode(p.uid); err != nil && e.refused[p.uid] && e.calls[p.uid] == 0 && ok && assumed {
				w.violate("I6", "%s: the binding of %s was refused for certain, and it is still assumed", e.name, p.name)
			}
		})
	})
	if e.freezes {
		e.freezes = false
		w.logf("  %s is frozen", e.name)
		d := leaseDuration + w.between(0, 20*time.Second)
		w.stall(e.process, d)
		if w.rng.IntN(2) == 0 {
			w.after(d-w.between(0, 3*time.Second), nil, "the leader is told to end", w.handOver)
		}
	}
}

// onNode is a pod as kube-scheduler assumes it.
func onNode(pod *v1.Pod, node string) *v1.Pod {
	out := *pod
	out.Spec.NodeName = node
	return &out
}

// unreserve undoes a reservation, and has others tried again.
func (s *scheduler) unreserve(c *decider.Cycle, p *spec, why string) {
	s.w.free(func() { s.own.decider.Unreserve(c) })
	s.own.dirty = true
	delete(s.own.reserved, p.uid)
	was := s.assumed[p.uid]
	delete(s.assumed, p.uid)
	if was.pod != nil {
		s.move(happening{what: podDeleted, before: was.pod})
	}
	s.failed(p.uid, why)
}

// chosen checks what Reserve has chosen, as if it were sent at once.
func (e *extenderProc) chosen(p *spec, pod *v1.Pod, nodeName string) {
	w := e.w
	node, _ := e.books.Node(nodeName)
	for _, h := range node.Holdings() {
		if h.Pod.UID == p.uid {
			binding, err := w.names.Binding(placement.PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: p.uid}, nodeName, h.Assignment, node)
			if err != nil {
				w.violate("I4", "what %s has chosen for %s cannot be written: %v", e.name, p.name, err)
				return
			}
			e.decided(binding)
			return
		}
	}
	w.violate("I2", "%s has reserved nothing for %s on %s", e.name, p.name, nodeName)
}

// bindPlain binds a pod that asks for no GPU memory, as kube-scheduler's own plugin does.
func (s *scheduler) bindPlain(pod *v1.Pod) {
	w, p := s.w, s.w.pods[string(pod.UID)]
	nodes := slices.DeleteFunc(sorted(s.nodes.store), func(n *v1.Node) bool { return !s.fits(p, pod, n) })
	if len(nodes) == 0 {
		s.refused(pod, refusal{nodes: map[string]string{"each": "it has too little in all"}, sum: true})
		return
	}
	node := pick(w.rng, nodes).Name
	s.assumed[p.uid] = assumed{node: node, need: p.need, pod: onNode(pod, node)}
	err := w.api.request(context.Background(), s.process, "POST plain binding "+pod.Name, true, func() error {
		if w.api.holder != s.own.identity {
			return errors.New("no longer leads")
		}
		return w.api.bind(api.PlainBinding(api.Ref(pod), node))
	})
	if err != nil {
		delete(s.assumed, p.uid)
		s.failed(p.uid, err.Error())
		return
	}
	delete(s.queue, p.uid)
}

// evictInside is kube-scheduler's own preemption. The plugin may name cheaper victims.
func (s *scheduler) evictInside(c *decider.Cycle, p *spec, pod *v1.Pod, no refusal) {
	w := s.w
	may := false
	w.free(func() { may = s.own.decider.MayEvict(c, 0) })
	if !p.priority || w.api.down || s.evicting(pod) || !may {
		return
	}
	chosen := make(map[string][]*v1.Pod)
	for _, name := range slices.Sorted(maps.Keys(no.nodes)) {
		if node := s.nodes.store[name]; node != nil && !slices.Contains(no.final, name) {
			if victims := s.victimsInside(c, p, pod, node); len(victims) > 0 {
				chosen[name] = victims
			}
		}
	}
	nominated := ""
	if len(chosen) > 0 {
		nominated = pick(w.rng, slices.Sorted(maps.Keys(chosen)))
		s.checkEviction(p, pod, nominated, chosen[nominated])
	}
	w.free(func() { s.own.decider.Evicts(c, len(no.nodes), len(chosen), nominated, "no pod is less important") })
	var victims []types.UID
	for _, victim := range chosen[nominated] {
		victims = append(victims, victim.UID)
	}
	s.evict(pod, nominated, victims)
}

// victimsInside returns whom to evict from a node; nil where that does not help.
func (s *scheduler) victimsInside(c *decider.Cycle, p *spec, pod *v1.Pod, node *v1.Node) []*v1.Pod {
	whole := s.infoOf(node.Name)
	fit := func(gone []*v1.Pod) bool {
		left := slices.DeleteFunc(slices.Clone(whole.pods), func(o *v1.Pod) bool { return slices.Contains(gone, o) })
		return s.fits(p, pod, node, gone...) && s.passes(c, p, node.Name, s.infoWith(left)) == nil
	}
	gone := s.victims(node, fit)
	if len(gone) == 0 {
		return nil
	}
	var cheaper []*v1.Pod
	ok := false
	s.w.free(func() { cheaper, _, ok = s.own.decider.Cheaper(c, whole.node(node.Name), gone, nil) })
	if ok && !slices.ContainsFunc(cheaper, func(o *v1.Pod) bool { return s.pods.store[o.Name] != o }) && fit(cheaper) {
		return cheaper
	}
	return gone
}

// started is when a pod was started: one that was not is the youngest.
func started(pod *v1.Pod) time.Time {
	if pod.Status.StartTime == nil {
		return time.Unix(1<<40, 0)
	}
	return pod.Status.StartTime.Time
}

// checkEviction looks whether the pod would fit some node without an eviction, now or in a moment.
func (s *scheduler) checkEviction(p *spec, pod *v1.Pod, from string, victims []*v1.Pod) {
	w := s.w
	for _, node := range sorted(s.nodes.store) {
		if s.fits(p, pod, node) && s.fitsUntouched(p, node) {
			w.violate("preempt", "%v would be evicted from %s for %s, which fits %s without", victimNames(victims), from, p.name, node.Name)
		}
	}
}

// aMoment is how long the kubelet may take to admit a pod, before others may be evicted for one that waits
// for that.
const aMoment = time.Minute

// fitsUntouched reports whether a pod fits a node, by all that kube-scheduler and gpumem have been told, as soon
// as its kubelet has admitted the pods that it has.
func (s *scheduler) fitsUntouched(p *spec, node *v1.Node) bool {
	w, e := s.w, s.own
	on := s.infoOf(node.Name).pods
	b, there := w.newBooks(node), make(map[string]bool)
	free := w.allocatable(node)
	if e.nodes.store[node.Name] != node || e.stored.nodes.store[node.Name] != node || p.edited || p.broken {
		return false // one of both has heard otherwise of the node
	}
	for _, pod := range on {
		o := w.pods[string(pod.UID)]
		there[o.uid] = true
		unsettled := pod.Status.StartTime == nil && o.confusable(p) && !o.alike(p) && w.now()-p.life.created >= aMoment
		if o == p || w.forges(o) || unsettled {
			return false
		}
		k := w.knownBy(pod)
		if a, assumed := s.assumed[o.uid]; assumed && a.pod == pod {
			sent := e.sent[o.uid]
			if sent == nil || sent.Target.Name != node.Name {
				return false
			}
			k.gpus = w.gpusOf(o, sent.Annotations[w.names.Assignment()])
		} else if e.stored.pods.store[pod.Name] != pod {
			return false // it has changed since
		} else if heard := e.pods.store[pod.Name]; heard != nil && heard != pod && heard.UID == pod.UID {
			return false
		}
		free = free.minus(o.need)
		b.add(k.spec, k.gpus, k.left)
	}
	for _, pod := range s.pods.store {
		if o := w.pods[string(pod.UID)]; o != p && pod.Status.NominatedNodeName == node.Name && !there[o.uid] {
			return false // it is to have what is free
		}
	}
	if state, ok := e.books.Node(node.Name); ok {
		if slices.ContainsFunc(state.Nominated, func(h placement.Holding) bool { return h.Pod.UID != p.uid }) {
			return false // the same, of which the cache has heard first
		}
		for _, h := range state.Holdings() {
			if !there[h.Pod.UID] && !e.books.IsConfirmed(h.Pod.UID) {
				return false // its binding may have landed
			}
		}
	}
	return free.covers(p.need) && b.fitting(p) >= p.gpus
}

func victimNames(pods []*v1.Pod) (out []string) {
	for _, pod := range pods {
		out = append(out, pod.Name)
	}
	return out
}

// helpsInside asks gpumem whether an event helps a pod that it has refused.
func (s *scheduler) helpsInside(p *spec, h happening) (helps bool) {
	pod, d := s.pods.store[p.name], s.own.decider
	if pod == nil || string(pod.UID) != p.uid {
		return false
	}
	s.w.free(func() {
		switch h.what {
		case podDeleted:
			helps = d.DeletionHelps(pod, h.before)
		case podChanged, podTouched, podNoted:
			helps = d.ChangeHelps(pod, h.before, h.after)
		case nodeAdded:
			helps = d.NodeHelps(pod, h.node)
		case nodeChanged:
			helps = !maps.Equal(h.was.Annotations, h.node.Annotations) && d.NodeHelps(pod, h.node)
		case podBound, nodeDeleted:
		}
	})
	return helps
}
