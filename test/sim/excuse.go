package sim

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// Extenders and device plugins decide without a common transaction. Two of them can allocate the same memory if neither has
// received the other's latest decision. The kubelet then gives the memory to one pod, and the other pod fails or moves. Until
// then, the pods that the API server has on a GPU may need more memory than the GPU has. So a pod is excused while one of the
// following rules applies to it, and at most for the rule's bound.

// rule is a reason to leave a pod out of the checks of its GPUs for a while.
type rule struct {
	name  string
	bound time.Duration // longest excuse of a pod, from the time when the rule begins to apply to it
}

var (
	olderInventory   = rule{"an extender bound the pod by an older inventory of the node", 30 * time.Second}
	unheardBinding   = rule{"an extender bound the pod without news of another pod on the GPU", 30 * time.Second}
	unheardPlacement = rule{"the plugin placed the pod without news of another pod on the GPU", 30 * time.Second}
	unheardPod       = rule{"the plugin served the pod without news of it", 30 * time.Second}
	exchange         = rule{"pods that can stand in for one another have exchanged GPUs, and the plugin has not written all of them", 30 * time.Second}
	ending           = rule{"the kubelet has rejected the pod or stopped its containers, and has not written that", 30 * time.Second}
)

// excuse records that a rule applies to a pod from now on. About ends the log line.
func (w *World) excuse(s *spec, r rule, about string) {
	w.logf("  excused: %s: %s%s", s.name, r.name, about)
	s.excused[r] = w.now()
	w.counts.Excused++
}

// misplacedUntil returns the end of the last excuse of a pod that was placed without news of another pod or of its node, or 0 if
// there was none. The pod keeps its GPUs, so its policy may forbid neighbours for as long as it runs. It must not forbid neighbours
// that arrive after that end.
func (s *spec) misplacedUntil() (end time.Duration) {
	for r, since := range s.excused {
		if r != exchange && r != ending {
			end = max(end, since+r.bound)
		}
	}
	return end
}

// noteArrivals records when a pod's annotation first named its GPUs.
func (w *World) noteArrivals(s *spec) {
	for _, id := range w.assignment(w.api.pods[s.name]) {
		if _, known := s.arrived[id]; !known {
			s.arrived[id] = w.now()
		}
	}
}

// neighbourSince returns when a pod, or an interchangeable pod with which it may have exchanged GPUs, first had a GPU.
func (w *World) neighbourSince(s *spec, id string) time.Duration {
	since := s.arrived[id]
	for _, o := range w.order {
		pod := w.api.pods[o.name]
		if at, known := o.arrived[id]; known && pod != nil && string(pod.UID) == o.uid && o.alike(s) {
			since = min(since, at)
		}
	}
	return since
}

// excuseWhile starts the excuse of a pod when the rule begins to apply, and ends it when the rule no longer applies.
func (w *World) excuseWhile(applies bool, s *spec, r rule) {
	if _, known := s.excused[r]; !applies {
		delete(s.excused, r)
	} else if !known {
		s.excused[r] = w.now()
	}
}

// isExcused reports whether some rule excuses a pod now.
func (w *World) isExcused(s *spec) bool {
	for r, since := range s.excused {
		if w.now()-since <= r.bound {
			return true
		}
	}
	return false
}

// sending is a binding that an extender has sent.
type sending struct {
	by      *process
	node    string
	gpus    []string
	refused bool // the API server has definitely refused it, and each other binding of the pod by that extender
}

// sentBy returns the last binding of a pod that one extender has sent, or the zero value.
func (w *World) sentBy(by *process, uid string) (last sending) {
	for _, one := range w.sent[uid] {
		if one.by == by {
			last = one
		}
	}
	return last
}

// noteSent records a binding as its extender's last one of the pod, and as the pod's last one of all extenders.
func (w *World) noteSent(uid string, one sending) {
	w.sent[uid] = append(slices.DeleteFunc(w.sent[uid], func(before sending) bool { return before.by == one.by }), one)
}

// whereabouts returns the GPUs of a node that a pod has or may get. For a bound pod, these are the annotated GPUs. They are
// the GPUs in the kubelet's checkpoint if that pod is forged, or if it has other GPUs for another reason than an exchange. For an
// unbound pod, they are the GPUs in the last binding to the node that an extender has sent.
func (w *World) whereabouts(s *spec, node string) []string {
	pod := w.api.pods[s.name]
	if pod == nil || string(pod.UID) != s.uid || terminal(pod) {
		return nil
	}
	switch pod.Spec.NodeName {
	case node:
		m := w.machine(node)
		if held := m.holds(s); held != nil && (w.forges(s) || !m.exchanged(s, held)) {
			return held
		}
		return w.assignment(pod)
	case "":
		for _, last := range slices.Backward(w.sent[s.uid]) {
			if last.node == node {
				return last.gpus
			}
		}
	}
	return nil
}

// unheard returns a pod that has or may get one of the given GPUs, but is not there in the books of the process that gives these
// GPUs to the pod self. It returns nil if there is none.
func (w *World) unheard(self *spec, node string, gpus []string, b *books) *spec {
	for _, s := range w.order {
		is := func(o *spec) bool { return o.uid == s.uid }
		if is(self) || slices.ContainsFunc(b.nowhere, is) {
			continue
		}
		for _, id := range w.whereabouts(s, node) {
			if slices.Contains(gpus, id) && !slices.ContainsFunc(b.holders[id], is) {
				return s
			}
		}
	}
	return nil
}

// checkCaughtUp reports a violation if an extender binds a pod to a node without news of another pod that was bound there before
// the extender's current series of Bind calls, or its lead, began (turns). Another extender may have bound that pod, and the watch
// may not have delivered it yet. The extender knows the pods that it has bound itself even before the watch delivers them.
func (e *extenderProc) checkCaughtUp(s *spec, node string) {
	w, view := e.w, e.view()
	for _, o := range w.order {
		pod := w.api.pods[o.name]
		bound := pod != nil && string(pod.UID) == o.uid && pod.Spec.NodeName == node && !terminal(pod)
		_, assumed, _ := e.books.PodNode(o.uid)
		assumed = assumed && w.sentBy(e.process, o.uid).node != node
		if before := o.boundAt > 0 && o.boundAt <= e.turns[s.uid]; o.uid != s.uid && bound && before && (view[o.uid].node != node || assumed) {
			w.violate("I2", "%s binds %s to %s without news of %s, which was bound at %s, and it has been asked since %s", e.name, s.name, node, o.name, o.boundAt, e.turns[s.uid])
		}
	}
}

// checkNews excuses a pod if an extender binds it without news of another pod on its GPUs. It reports a violation if the extender
// has itself bound the other pod to these GPUs. Two cases are no violation. If the API server has definitely refused that
// binding, another extender has bound the other pod. If the watch has delivered a correction of the other pod's GPUs, the
// extender may not know the next correction yet, which moved the pod back.
func (e *extenderProc) checkNews(s *spec, node string, gpus []string, b *books) {
	w := e.w
	other := w.unheard(s, node, gpus, b)
	if other == nil {
		return
	}
	pod := w.api.pods[other.name]
	heard := e.pods.store[other.name]
	bound := heard != nil && string(heard.UID) == other.uid && heard.Spec.NodeName != ""
	last := w.sentBy(e.process, other.uid)
	_, assumed, known := e.books.PodNode(other.uid)
	changed := bound && !sameSet(last.gpus, w.assignment(heard)) || w.forges(other) && known && !assumed
	if !changed && last.by == e.process && !last.refused && pod.Spec.NodeName == node && sameSet(last.gpus, w.whereabouts(other, node)) {
		w.violate("I2", "%s gives %s %v, and has forgotten that it gave %s %v", e.name, s.name, gpus, other.name, last.gpus)
		return
	}
	w.excuse(s, unheardBinding, ": "+other.name)
}

// checkPlace excuses a pod if the plugin placed it without news of another pod on its GPUs. It skips a pod that has its annotated
// GPUs, or has exchanged them with an interchangeable pod. For every other pod, the plugin must find GPUs beside all pods that it
// knows.
func (k *kubelet) checkPlace(s *spec, gpus []string) {
	w, p := k.w, k.plugin()
	pod := w.api.pods[s.name]
	if pod == nil || string(pod.UID) != s.uid || p == nil || w.assignment(pod) != nil && k.m.exchanged(s, gpus) {
		return
	}
	b := w.newBooks(&v1.Node{})
	for _, d := range p.inventory.Devices {
		b.capacity[string(d.UUID)] = int(d.Allocatable)
	}
	for _, other := range k.advised {
		if o := w.pods[other.Pod.UID]; o != s {
			b.add(o, k.m.placeOf(o, other), nil)
		}
	}
	if other := w.unheard(s, k.m.name, gpus, b); other != nil {
		w.excuse(s, unheardPlacement, ": "+other.name)
	}
}

// placeOf returns the GPUs on which the plugin counts a pod: the GPUs that the kubelet has given to a pod of that name, because
// PodResources has no UIDs, or else the annotated GPUs.
func (m *machine) placeOf(s *spec, p allocation.Pod) []string {
	for uid := range m.checkpoint {
		if o := m.w.pods[uid]; o.name == s.name {
			return m.holds(o)
		}
	}
	var out []string
	for _, id := range p.Assignment.Devices() {
		out = append(out, string(id))
	}
	return out
}

// holds returns the GPUs of a pod by the IDs in the kubelet's checkpoint.
func (m *machine) holds(s *spec) []string {
	var ids []string
	for _, g := range m.checkpoint[s.uid] {
		ids = append(ids, g.ids...)
	}
	return m.gpusOf(ids)
}

// exchanged reports whether a pod on these GPUs has its annotated GPUs, or has exchanged them with interchangeable pods: no set of
// GPUs has more of these pods than annotations name it. It can be false even for a pod on its annotated GPUs, if another pod is
// there too, because that pod found no memory on its own annotated GPUs.
func (m *machine) exchanged(s *spec, gpus []string) bool {
	w := m.w
	planned := make(map[string]int)
	for _, o := range m.alike(s) {
		if written := w.assignment(w.api.pods[o.name]); written != nil {
			planned[key(written)]++
		}
		if o == s {
			planned[key(gpus)]--
		} else if held := m.holds(o); held != nil {
			planned[key(held)]--
		}
	}
	for _, n := range planned {
		if n < 0 {
			return false
		}
	}
	return true
}

// exchanging reports whether the pod or an interchangeable pod has other GPUs than its annotation names, or still counts on
// GPUs that it has left.
func (m *machine) exchanging(s *spec) bool {
	w := m.w
	return slices.ContainsFunc(m.alike(s), func(o *spec) bool {
		pod := w.api.pods[o.name]
		held := m.holds(o)
		return held != nil && !sameSet(held, w.assignment(pod)) || len(w.leaving(pod)) > 0
	})
}

// over reports whether the kubelet has rejected a pod, or has stopped its containers. An interchangeable pod may then already
// have its GPU.
func (m *machine) over(s *spec) bool {
	if m.kubelet == nil {
		return false
	}
	k := m.kubelet.managed[s.uid]
	return k != nil && (k.rejected || k.terminated)
}

// alike returns the pods of the machine that are interchangeable with a pod, including the pod.
func (m *machine) alike(s *spec) (out []*spec) {
	for _, o := range m.w.order {
		pod := m.w.api.pods[o.name]
		if pod != nil && string(pod.UID) == o.uid && pod.Spec.NodeName == m.name && !terminal(pod) && o.alike(s) {
			out = append(out, o)
		}
	}
	return out
}

func key(gpus []string) string { return strings.Join(slices.Sorted(slices.Values(gpus)), " ") }

func sameSet(a, b []string) bool { return key(a) == key(b) }

// offers reports whether the plugin offers a GPU. No pod can be charged on a GPU that is gone.
func (m *machine) offers(id string) bool {
	return m.plugin != nil && slices.ContainsFunc(m.plugin.inventory.Devices, func(d gpu.Device) bool { return string(d.UUID) == id })
}

// checkMove checks a plugin's change of the GPUs in a pod's annotation. It requires that the kubelet has given the pod something,
// or that an interchangeable pod can have taken its place. The pod must still count on its old GPUs while an interchangeable pod
// that has one of them is not charged on it.
func (m *machine) checkMove(before, after *v1.Pod) {
	w := m.w
	s := w.pods[string(after.UID)]
	was, is := w.assignment(before), w.assignment(after)
	if was == nil || sameSet(was, is) {
		return
	}
	s.left = was
	others := slices.DeleteFunc(m.alike(s), func(o *spec) bool { return o == s })
	left := func(o *spec) bool {
		pod := w.api.pods[o.name]
		return sameSet(w.assignment(pod), is) || sameSet(w.leaving(pod), is) ||
			sameSet(o.left, is) && sameSet(w.assignment(pod), was) // its annotation already shows the exchange with this pod
	}
	if w.cfg.Adversary == free && !s.hostile() && !s.begun && !slices.ContainsFunc(others, left) {
		w.violate("I11", "%s is written to be on %v and not on %v, which no other has left: the adversary's word is taken for it", s.name, is, was)
	}
	if !s.begun && len(others) == 0 {
		w.violate("I5", "%s is written to be on %v and not on %v: the kubelet has given it nothing, and nobody has taken its place", s.name, is, was)
	}
	for _, id := range was {
		if slices.Contains(is, id) || slices.Contains(w.leaving(after), id) || !m.offers(id) {
			continue
		}
		for _, o := range others {
			pod := w.api.pods[o.name]
			if slices.Contains(m.holds(o), id) && !slices.Contains(w.assignment(pod), id) && !slices.Contains(w.leaving(pod), id) && sameSet(w.assignment(pod), is) {
				w.violate("I2", "%s is written to have left %s, which %s has and is not charged with", s.name, id, o.name)
			}
		}
	}
}
