package allocation

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// podStates are a State sorted by pod: who holds what, and where everybody is or is
// to be.
type podStates struct {
	State
	pods   []*podState // of State.Pods, in their order
	strays []Allocated // of pods that are not known
}

// podState is a pod with all that is known of it.
type podState struct {
	placement.Holding // with the GPUs where the pod is or is to be: see locate

	pod     Pod                  // as the caller knows it
	held    []Allocated          // by its containers
	written placement.Assignment // in its annotation
	plan    placement.Assignment // that an equal pod may be given in its place
	actual  placement.Assignment // where the kubelet has put it; none where that has given it nothing
}

// begun reports whether the kubelet has served a container of the pod already.
func (t *podState) begun() bool { return len(t.held) > 0 }

// slots returns what the kubelet has given to the pod.
func (t *podState) slots() (ids []gpu.SlotID) {
	for _, h := range t.held {
		ids = append(ids, h.Slots...)
	}
	return ids
}

// byPod sorts what is known. Where pods are is left to locate.
func byPod(s State) *podStates {
	b := &podStates{State: s}
	held, known := make(map[[2]string][]Allocated), make(map[[2]string]bool) // by namespace and name
	for _, h := range s.Allocated {
		held[[2]string{h.Namespace, h.Name}] = append(held[[2]string{h.Namespace, h.Name}], h)
	}
	for _, p := range s.Pods {
		of := [2]string{p.Pod.Namespace, p.Pod.Name}
		known[of] = true
		t := &podState{Holding: p.Holding, pod: p, held: held[of], written: p.Assignment}
		t.written.Leaving = nil
		t.plan = t.written
		if p.Plan != nil {
			t.plan = *p.Plan
		}
		b.pods = append(b.pods, t)
	}
	b.strays = those(s.Allocated, func(h Allocated) bool { return !known[[2]string{h.Namespace, h.Name}] })
	return b
}

// locate finds out where pods are or are to be. It is what is written of them,
// but for pods that the kubelet took for one another: one that has slots is where
// those are, and one that waits has what was planned for such a pod.
func (b *podStates) locate() {
	interchangeable := make(map[placement.Key][]*podState)
	for _, t := range b.pods {
		t.actual = b.whereAllocated(t)
		key := t.Request.GPUKey()
		interchangeable[key] = append(interchangeable[key], t)
	}
	for _, alike := range interchangeable {
		b.sharePlans(alike)
	}
}

// sharePlans settles pods that can stand in for one another: they share what was planned for
// them all. GPUs that the node lacks are not shared out.
func (b *podStates) sharePlans(alike []*podState) {
	var left []placement.Assignment // that is planned, and that none of them has yet
	for _, t := range alike {
		if !t.plan.None() && b.has(t.plan) {
			left = append(left, t.plan)
		}
	}
	claim := func(a placement.Assignment) bool {
		at := slices.IndexFunc(left, a.SameDevices)
		if at >= 0 {
			left = slices.Delete(left, at, at+1)
		}
		return at >= 0
	}
	slices.SortStableFunc(alike, func(x, y *podState) int { return placement.CompareBool(x.actual.None(), y.actual.None()) })
	var displaced []*podState
	for _, t := range alike { // those first that have theirs
		switch t.Assignment = t.written; {
		case !t.actual.None():
			t.Assignment = t.actual
			claim(t.actual)
		case !t.written.None() && b.has(t.written) && !claim(t.written):
			displaced = append(displaced, t)
		}
	}
	for i, t := range displaced[:min(len(displaced), len(left))] {
		t.Assignment = placement.Assignment{Shares: left[i].Shares}
	}
}

// Actual returns where the kubelet has put a pod; nothing, if it has given it
// none. Slots of a GPU that is gone say nothing.
func Actual(s State, p Pod) placement.Assignment {
	s.Pods = []Pod{p}
	b := byPod(s)
	return b.whereAllocated(b.pods[0])
}

func (b *podStates) whereAllocated(t *podState) (a placement.Assignment) {
	known := b.knows(t.slots())
	a.Allocated = t.written.Allocated && known
	a.Shares = b.shares(t.slots())
	r := t.Request
	if n := len(a.Shares); n > 0 && n != r.GPUs() && known {
		r.Count, a.Allocated = n, true
	}
	return a.WithShares(r)
}

// knows reports whether all slots are of GPUs of the node. Those of one that is gone do not
// tell of how many GPUs they are.
func (s State) knows(ids []gpu.SlotID) bool {
	return !slices.ContainsFunc(ids, func(id gpu.SlotID) bool { _, err := s.device(id); return err != nil })
}

// has reports whether the devices of an assignment are the node's.
func (s State) has(a placement.Assignment) bool {
	return !slices.ContainsFunc(a.Devices(), func(id gpu.UUID) bool { _, ok := s.Inventory.Device(id); return !ok })
}

// without returns the node as it would be without one pod. What the kubelet
// gave to a pod counts, and what is planned for those that got nothing yet; so
// does what it still holds of pods that the API server no longer knows.
func (b *podStates) without(t *podState) placement.Node {
	var holdings []placement.Holding
	for _, o := range b.pods {
		// A pod that is as unplaced as this one comes after it.
		if o.Pod.UID != t.Pod.UID && (!o.Assignment.None() || o.begun()) {
			holdings = append(holdings, o.Holding)
		}
	}
	for _, h := range b.strays {
		holdings = append(holdings, b.stray(h))
	}
	return placement.NewNode("", b.Inventory, holdings)
}

// stray is what the kubelet holds of a pod that is not known.
func (b *podStates) stray(h Allocated) placement.Holding {
	out := placement.Holding{Pod: placement.PodRef{Namespace: h.Namespace, Name: h.Name}, Admitted: true}
	out.Assignment.Shares = b.shares(h.Slots)
	return out
}

// unserved returns the containers of a pod that ask for a resource and that the
// kubelet has still to serve with it: none of those before the last that holds
// anything, nor that if it holds some. A plain init container is among them until
// the next has been served, for it never shows what it holds.
func (t *podState) unserved(r gpu.Resource) (rest []placement.Container) {
	for _, c := range t.Request.Containers.All() {
		served := false
		for _, h := range t.held {
			if h.Container == c.Name {
				rest, served = nil, served || len(h.Only(r)) > 0
			}
		}
		if !served && Amount(r, c) > 0 {
			rest = append(rest, c)
		}
	}
	return rest
}

// wanting returns those of the unserved containers that ask for so much.
func (t *podState) wanting(r gpu.Resource, size int) []placement.Container {
	return those(t.unserved(r), func(c placement.Container) bool { return Amount(r, c) == size })
}

// listed reports whether the kubelet lists the pod.
func (b *podStates) listed(t *podState) bool { return b.Listed[t.Pod.String()] }

func those[T any](all []T, pass func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(all), func(t T) bool { return !pass(t) })
}

// preferring keeps the pods that pass, or all if none does.
func preferring(all []*podState, pass func(*podState) bool) []*podState {
	if kept := those(all, pass); len(kept) > 0 {
		return kept
	}
	return all
}

// compareBegun puts pods first whose other containers have been served already.
func compareBegun(a, b *podState) int { return placement.CompareBool(b.begun(), a.begun()) }

func compareAge(a, b *podState) int {
	return cmp.Or(a.pod.Created.Compare(b.pod.Created), a.Pod.Compare(b.Pod))
}
