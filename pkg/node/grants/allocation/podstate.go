package allocation

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// podStates is a State grouped by pod, with the allocations and the actual or planned GPUs of each pod.
type podStates struct {
	State
	pods   []*podState // State.Pods, in their order
	strays []Allocated // allocations of unknown pods
}

// podState is a pod with its annotations, plan and allocations.
type podState struct {
	placement.Holding // with the actual or planned GPUs: see locate

	pod         Pod                  // from State.Pods
	allocations []Allocated          // allocations of its containers
	written     placement.Assignment // the assignment annotation, without Leaving
	plan        placement.Assignment // Pod.Plan, or the annotation if that is nil; an interchangeable pod inherits it if the kubelet swaps the two
	actual      placement.Assignment // GPUs of its slots; empty without slots
}

// isServed reports whether the kubelet has already allocated slots to a container of the pod.
func (t *podState) isServed() bool { return len(t.allocations) > 0 }

// slots returns all slots of the pod.
func (t *podState) slots() (ids []gpu.SlotID) {
	for _, h := range t.allocations {
		ids = append(ids, h.Slots...)
	}
	return ids
}

// byPod groups the state by pod. Function locate then sets the pods' GPUs.
func byPod(s State) *podStates {
	b := &podStates{State: s}
	allocations, knownPods := make(map[[2]string][]Allocated), make(map[[2]string]bool) // by namespace and name
	for _, h := range s.Allocated {
		allocations[[2]string{h.Namespace, h.Name}] = append(allocations[[2]string{h.Namespace, h.Name}], h)
	}
	for _, p := range s.Pods {
		name := [2]string{p.Pod.Namespace, p.Pod.Name}
		knownPods[name] = true
		t := &podState{Holding: p.Holding, pod: p, allocations: allocations[name], written: p.Assignment}
		t.written.Leaving = nil
		t.plan = t.written
		if p.Plan != nil {
			t.plan = *p.Plan
		}
		b.pods = append(b.pods, t)
	}
	b.strays = filter(s.Allocated, func(h Allocated) bool { return !knownPods[[2]string{h.Namespace, h.Name}] })
	return b
}

// locate sets the actual or planned GPUs of each pod. They follow from the annotation, except for pods that the
// kubelet has swapped: a pod with slots is on the GPUs of its slots, and a waiting pod inherits the plan of the
// pod that got its GPUs.
func (b *podStates) locate() {
	interchangeable := make(map[placement.Key][]*podState)
	for _, t := range b.pods {
		t.actual = b.allocatedAssignment(t)
		key := t.Request.GPUKey()
		interchangeable[key] = append(interchangeable[key], t)
	}
	for _, alike := range interchangeable {
		b.sharePlans(alike)
	}
}

// sharePlans sets the GPUs of interchangeable pods. If a waiting pod's GPUs are allocated to another pod,
// sharePlans gives it a plan that no pod uses. It skips plans on GPUs that the node lacks.
func (b *podStates) sharePlans(alike []*podState) {
	var unclaimed []placement.Assignment // plans that none of these pods uses yet
	for _, t := range alike {
		if !t.plan.None() && b.hasDevices(t.plan) {
			unclaimed = append(unclaimed, t.plan)
		}
	}
	claim := func(a placement.Assignment) bool {
		at := slices.IndexFunc(unclaimed, a.SameDevices)
		if at >= 0 {
			unclaimed = slices.Delete(unclaimed, at, at+1)
		}
		return at >= 0
	}
	slices.SortStableFunc(alike, func(x, y *podState) int { return placement.CompareBool(x.actual.None(), y.actual.None()) })
	var displaced []*podState
	for _, t := range alike { // first the pods with slots
		switch t.Assignment = t.written; {
		case !t.actual.None():
			t.Assignment = t.actual
			claim(t.actual)
		case !t.written.None() && b.hasDevices(t.written) && !claim(t.written):
			displaced = append(displaced, t)
		}
	}
	for i, t := range displaced[:min(len(displaced), len(unclaimed))] {
		t.Assignment = placement.Assignment{Shares: unclaimed[i].Shares}
	}
}

// Actual returns the assignment that follows from a pod's slots, or an empty one for a pod without slots. It
// ignores slots of a missing GPU.
func Actual(s State, p Pod) placement.Assignment {
	s.Pods = []Pod{p}
	b := byPod(s)
	return b.allocatedAssignment(b.pods[0])
}

func (b *podStates) allocatedAssignment(t *podState) (a placement.Assignment) {
	knownDevices := b.hasDevicesOf(t.slots())
	a.Allocated = t.written.Allocated && knownDevices
	a.Shares = b.shares(t.slots())
	r := t.Request
	if n := len(a.Shares); n > 0 && n != r.GPUs() && knownDevices {
		r.Count, a.Allocated = n, true
	}
	return a.WithShares(r)
}

// hasDevicesOf reports whether all slots belong to GPUs of the node. If a slot's GPU is missing, the number of the
// pod's GPUs is unknown.
func (s State) hasDevicesOf(ids []gpu.SlotID) bool {
	return !slices.ContainsFunc(ids, func(id gpu.SlotID) bool { _, err := s.device(id); return err != nil })
}

// hasDevices reports whether the node has all devices of an assignment.
func (s State) hasDevices(a placement.Assignment) bool {
	return !slices.ContainsFunc(a.Devices(), func(id gpu.UUID) bool { _, ok := s.Inventory.Device(id); return !ok })
}

// nodeWithout returns the node without pod t. The node includes allocations, the plans of pods without allocations,
// and the allocations of pods that the API server no longer lists.
func (b *podStates) nodeWithout(t *podState) placement.Node {
	var holdings []placement.Holding
	for _, o := range b.pods {
		// A pod without an assignment has no precedence over pod t.
		if o.Pod.UID != t.Pod.UID && (!o.Assignment.None() || o.isServed()) {
			holdings = append(holdings, o.Holding)
		}
	}
	for _, h := range b.strays {
		holdings = append(holdings, b.stray(h))
	}
	return placement.NewNode("", b.Inventory, holdings)
}

// stray returns a holding for the allocation of an unknown pod.
func (b *podStates) stray(h Allocated) placement.Holding {
	out := placement.Holding{Pod: placement.PodRef{Namespace: h.Namespace, Name: h.Name}, Admitted: true}
	out.Assignment.Shares = b.shares(h.Slots)
	return out
}

// unserved returns the containers of a pod that still wait for a resource. The kubelet serves containers in
// order, so all containers before the last one with an allocation have their slots. A plain init container
// counts as unserved until the kubelet has served the next container, because its allocation is never listed.
func (t *podState) unserved(r gpu.Resource) (remaining []placement.Container) {
	for _, c := range t.Request.Containers.All() {
		served := false
		for _, h := range t.allocations {
			if h.Container == c.Name {
				remaining, served = nil, served || len(h.SlotsOf(r)) > 0
			}
		}
		if !served && Amount(r, c) > 0 {
			remaining = append(remaining, c)
		}
	}
	return remaining
}

// unservedWith returns the unserved containers that request exactly this amount.
func (t *podState) unservedWith(r gpu.Resource, size int) []placement.Container {
	return filter(t.unserved(r), func(c placement.Container) bool { return Amount(r, c) == size })
}

// isListed reports whether the kubelet lists the pod.
func (b *podStates) isListed(t *podState) bool { return b.Listed[t.Pod.String()] }

func filter[T any](items []T, pass func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(items), func(t T) bool { return !pass(t) })
}

// preferMatching returns the pods for which `pass` is true, or all pods if there are none.
func preferMatching(items []*podState, pass func(*podState) bool) []*podState {
	if kept := filter(items, pass); len(kept) > 0 {
		return kept
	}
	return items
}

// compareBegun orders pods that already have slots first.
func compareBegun(a, b *podState) int { return placement.CompareBool(b.isServed(), a.isServed()) }

func compareAge(a, b *podState) int {
	return cmp.Or(a.pod.Created.Compare(b.pod.Created), a.Pod.Compare(b.Pod))
}
