package sim

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// Extender and device plugin decide without a transaction. Two that have not heard of each other's latest decision can promise
// the same memory. The kubelet then gives it to one pod, and the other pod fails or goes elsewhere. Until then, the pods that
// the API server has on a GPU may need more than the GPU has, for one of these reasons and no longer than its bound.

// rule is a reason for which a pod does not count on its GPUs for a while.
type rule struct {
	name  string
	bound time.Duration // from the moment when it begins to apply to a pod
}

var (
	olderInventory   = rule{"an extender bound the pod by an older inventory of the node", 30 * time.Second}
	unheardBinding   = rule{"an extender bound the pod without news of another pod on the GPU", 30 * time.Second}
	unheardPlacement = rule{"the plugin placed the pod without news of another pod on the GPU", 30 * time.Second}
	unheardPod       = rule{"the plugin served the pod without news of it", 30 * time.Second}
	exchange         = rule{"pods that can stand in for one another have exchanged GPUs, and the plugin has not written all of them", 30 * time.Second}
	ending           = rule{"the kubelet has rejected the pod or stopped its containers, and has not written that", 30 * time.Second}
)

// excuse records that a rule begins to apply to a pod.
func (w *World) excuse(s *spec, r rule, about string) {
	w.logf("  excused: %s: %s%s", s.name, r.name, about)
	s.excused[r] = w.now()
	w.counts.Excused++
}

// isMisplaced reports whether a pod was placed without news. It keeps the GPUs, and may have others there than its rules allow.
func (s *spec) isMisplaced() bool {
	for r := range s.excused {
		if r != exchange && r != ending {
			return true
		}
	}
	return false
}

// excuseWhile records whether a rule applies to a pod now.
func (w *World) excuseWhile(applies bool, s *spec, r rule) {
	if _, known := s.excused[r]; !applies {
		delete(s.excused, r)
	} else if !known {
		s.excused[r] = w.now()
	}
}

// isExcused reports whether a rule applies to a pod within its bound.
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
	refused bool // for certain, and no other of that extender may have landed
}

// sentBy returns the last binding of a pod that an extender has sent, or none.
func (w *World) sentBy(by *process, uid string) (last sending) {
	for _, one := range w.sent[uid] {
		if one.by == by {
			last = one
		}
	}
	return last
}

// noteSent records the last binding of a pod that an extender has sent, after those of others.
func (w *World) noteSent(uid string, one sending) {
	w.sent[uid] = append(slices.DeleteFunc(w.sent[uid], func(before sending) bool { return before.by == one.by }), one)
}

// whereabouts returns the GPUs of a node that a pod is on, or may be on its way
// to.
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

// unheard returns a pod that is on one of the GPUs that another is given, and
// not in the books of whoever gives them.
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

// checkCaughtUp looks whether the sender of a binding knows of all that was bound
// to the node before it was asked at all: another may have bound it, of which its
// watch has not told. What it has bound itself it knows before its watch tells.
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

// checkNews looks at what the sender of a binding did not know. Of its own
// bindings it has to know, unless they were refused for certain: what landed then
// was another's. Nor does it where its watch has told of a correction since, and not yet of the
// next, which took the pod back.
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

// checkPlace looks at the GPUs that the kubelet has given a pod, if they are not
// those that are written of it. Pods that can stand in for one another may
// exchange theirs; one that has none to give, and others, the plugin has to find a
// place beside all that it knows of.
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

// placeOf returns where the plugin takes a pod to be: on the GPUs that the
// kubelet has given to one of that name (it tells no UID), or else on those that
// are written of it.
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

// holds returns the GPUs of the IDs that the kubelet has recorded of a pod.
func (m *machine) holds(s *spec) []string {
	var ids []string
	for _, g := range m.checkpoint[s.uid] {
		ids = append(ids, g.ids...)
	}
	return m.gpusOf(ids)
}

// exchanged reports whether a pod that is on these GPUs has its own, or another's
// in exchange: among the pods that can stand in for it, no more are on any GPUs
// than are planned there. Its own may have been taken by another, which finds
// nothing where it should have been: then they are one too many.
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

// exchanging reports whether the pod, or one that can stand in for it, is not
// written as what it is.
func (m *machine) exchanging(s *spec) bool {
	w := m.w
	return slices.ContainsFunc(m.alike(s), func(o *spec) bool {
		pod := w.api.pods[o.name]
		held := m.holds(o)
		return held != nil && !sameSet(held, w.assignment(pod)) || len(w.leaving(pod)) > 0
	})
}

// over reports whether the kubelet has rejected a pod, or its containers have stopped: another that
// can stand in for it may have its GPU.
func (m *machine) over(s *spec) bool {
	if m.kubelet == nil {
		return false
	}
	k := m.kubelet.managed[s.uid]
	return k != nil && (k.rejected || k.terminated)
}

// alike returns the pods of the machine that can stand in for one, itself among
// them.
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

// offers reports whether the plugin has a GPU: of one that is gone, nothing can be charged.
func (m *machine) offers(id string) bool {
	return m.plugin != nil && slices.ContainsFunc(m.plugin.inventory.Devices, func(d gpu.Device) bool { return string(d.UUID) == id })
}

// checkMove looks at what a plugin has written of a pod, if that is on other GPUs
// now: either the kubelet has put it there, or it has lost its own to a pod that
// can stand in for it. And it leaves no gap on GPUs to which such a pod is still
// to come.
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
			sameSet(o.left, is) && sameSet(w.assignment(pod), was) // it is written already to have exchanged GPUs with this one
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
