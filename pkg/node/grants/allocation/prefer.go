package allocation

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Prefer selects the slots of a resource that the kubelet should allocate to a container. It returns `size` of
// the `available` slots, including all `required` ones. It returns ErrNoPod if no known pod waits for this
// amount.
func Prefer(s State, r gpu.Resource, available, required []gpu.SlotID, size int) ([]gpu.SlotID, error) {
	if size <= 0 || len(required) > size {
		return nil, fmt.Errorf("the kubelet asks for %d slots, and names %d", size, len(required))
	}
	b := byPod(s)
	b.locate()
	b.locateUnseen()
	free := b.freeSlots(r, available)
	if len(required) > 0 {
		return b.extendSlots(r, free, required, size)
	}
	waiting := b.waitingFor(r, size)
	if err := b.ambiguous(r, waiting, size); err != nil && b.Listed == nil {
		return nil, err
	}
	for _, t := range waiting {
		if ids, ok := pickSlots(free, nil, t.Assignment.Devices(), size); ok {
			return ids, nil
		}
		if t.isServed() || unseen(t.Request) && !t.Assignment.None() {
			return nil, b.refusal(r, waiting, size) // the pod cannot move to other GPUs
		}
	}
	for _, t := range waiting {
		if !s.PlaceUnassigned {
			break
		}
		if ids, ok := b.placePod(r, free, t, size); ok {
			return ids, nil
		}
	}
	return nil, b.refusal(r, waiting, size)
}

// waitingFor returns the pods for which the kubelet may have called, the likeliest first: pods that already
// have slots, then older pods. waitingFor applies three filters, and skips a filter that no pod passes: listed
// pods, pods that are not admitted, and pods with a container of this amount that has no attributed grant. If
// all pods are admitted, the kubelet has lost its records and admits them again.
func (b *podStates) waitingFor(r gpu.Resource, size int) []*podState {
	waiting := filter(b.pods, func(t *podState) bool {
		rest := t.unserved(r)
		return len(rest) > 0 && Amount(r, rest[0]) == size
	})
	waiting = preferMatching(waiting, b.isListed)
	waiting = preferMatching(waiting, func(t *podState) bool { return !t.Admitted })
	waiting = preferMatching(waiting, func(t *podState) bool { return !b.allAttributed(t, r, size) })
	slices.SortFunc(waiting, func(a, b *podState) int { return cmp.Or(compareBegun(a, b), compareAge(a, b)) })
	return waiting
}

// freeSlots returns the available slots that no container holds, by device and in order. The kubelet may offer
// allocated slots: see Decisions in the package comment.
func (b *podStates) freeSlots(r gpu.Resource, available []gpu.SlotID) map[gpu.UUID][]gpu.SlotID {
	free := make(map[gpu.SlotID]bool, len(available))
	for _, id := range available {
		free[id] = true
	}
	for _, h := range b.Allocated {
		for _, id := range h.Slots {
			delete(free, id)
		}
	}
	out := make(map[gpu.UUID][]gpu.SlotID)
	for _, d := range b.Inventory.Devices {
		out[d.UUID] = filter(b.Slots.Of(r, d.UUID), func(id gpu.SlotID) bool { return free[id] })
	}
	return out
}

// pickSlots returns `size` slots, the same number on each device, including the required ones. It returns false
// if the free slots do not suffice.
func pickSlots(free map[gpu.UUID][]gpu.SlotID, required []gpu.SlotID, devices []gpu.UUID, size int) ([]gpu.SlotID, bool) {
	if len(devices) == 0 || size%len(devices) != 0 {
		return nil, false
	}
	share := size / len(devices)
	var out []gpu.SlotID
	for _, device := range devices {
		if len(free[device]) < share {
			return nil, false
		}
		ids := slices.Clone(free[device])
		slices.SortStableFunc(ids, func(a, b gpu.SlotID) int {
			return placement.CompareBool(slices.Contains(required, b), slices.Contains(required, a))
		})
		out = append(out, ids[:share]...)
	}
	left := func(id gpu.SlotID) bool { return !slices.Contains(out, id) }
	return out, !slices.ContainsFunc(required, left)
}

// extendSlots returns the required slots, which the kubelet reuses from the pod's init containers, and further slots
// on the same GPUs.
func (b *podStates) extendSlots(r gpu.Resource, free map[gpu.UUID][]gpu.SlotID, required []gpu.SlotID, size int) ([]gpu.SlotID, error) {
	var devices []gpu.UUID
	for _, id := range required {
		d, err := b.Slots.Device(id)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(devices, d.UUID) {
			devices = append(devices, d.UUID)
		}
	}
	ids, ok := pickSlots(free, required, devices, size)
	if !ok {
		return nil, &placement.Short{Devices: devices, Resource: r, Slots: size, UnitMiB: b.Inventory.UnitMiB}
	}
	return ids, nil
}

// placePod selects slots for a pod without an assignment, or for a pod whose GPUs the kubelet has allocated to
// another pod.
func (b *podStates) placePod(r gpu.Resource, free map[gpu.UUID][]gpu.SlotID, t *podState, size int) ([]gpu.SlotID, bool) {
	node := b.nodeWithout(t)
	units, cores := t.Request.Share()
	share := Amount(r, placement.Container{Units: units, Cores: cores})
	for i, d := range node.Devices {
		if len(free[d.UUID]) < share && !unseen(t.Request) {
			node.Devices[i] = d.With(gpu.Status{Unhealthy: true}) // the kubelet has not freed enough of this GPU yet
		}
	}
	chosen, verdict := placement.Choose(b.Policy, t.Request, node)
	if !verdict.Fits() {
		return nil, false
	}
	return pickSlots(free, nil, chosen.Devices(), size)
}

// refusal returns the reason why no waiting pod gets its slots.
func (b *podStates) refusal(r gpu.Resource, waiting []*podState, size int) error {
	if len(waiting) == 0 {
		return ErrNoPod
	}
	t := waiting[0]
	if t.Assignment.None() && !b.PlaceUnassigned {
		return unplaced(t.Pod)
	}
	if verdict := placement.Fit(t.Request, b.nodeWithout(t)); !verdict.Fits() {
		return &placement.Unfit{Pod: t.Pod, Verdict: verdict}
	}
	return &placement.Short{Pod: t.Pod, Devices: t.Assignment.Devices(), Resource: r, Slots: size, UnitMiB: b.Inventory.UnitMiB}
}

func unplaced(pod placement.PodRef) error {
	return fmt.Errorf("pod %s was not placed by gpumem's scheduler, and this node refuses such pods: set schedulerName, and leave nodeName empty", pod)
}

// ambiguous returns an error if the kubelet's call matches two pods that are not interchangeable and have
// different GPUs. The scheduler does not let such pods wait together, so this happens only by accident. If the
// kubelet has never listed anything, any waiting pod may already have allocations.
func (b *podStates) ambiguous(r gpu.Resource, waiting []*podState, size int) error {
	if len(waiting) > 0 && waiting[0].isServed() {
		return nil
	}
	for i, t := range waiting {
		for _, o := range waiting[:i] {
			if !o.Request.Interchangeable(t.Request) && !o.together(t) {
				return mayBeFor(o, t)
			}
		}
	}
	if !b.NeverListed {
		return nil
	}
	asks := func(c placement.Container) bool { return Amount(r, c) == size }
	for _, t := range b.pods {
		if t.Admitted || t.Request.Empty() || !slices.ContainsFunc(t.Request.Containers.All()[1:], asks) {
			continue
		}
		for _, o := range b.pods {
			if !o.Admitted && slices.ContainsFunc(o.Request.Containers.All(), asks) && !o.together(t) {
				return mayBeFor(t, o)
			}
		}
	}
	return nil
}

// together reports whether two pods have the same GPUs.
func (t *podState) together(o *podState) bool {
	return !t.Assignment.None() && t.Assignment.SameDevices(o.Assignment) || t.Pod == o.Pod
}

func mayBeFor(a, b *podState) error {
	return fmt.Errorf("the kubelet's call names no pod, and both pod %s and pod %s match", a.Pod, b.Pod)
}

// unseen reports whether a pod requests both resources and has a plain init container. The kubelet does not
// list that container's allocation of one resource when it requests the other, so the plugin must derive both
// answers from the annotation alone.
func unseen(r placement.Request) bool {
	return r.Cores() > 0 && slices.ContainsFunc(r.Containers.All(), func(c placement.Container) bool {
		return c.Kind == placement.Init
	})
}

// locateUnseen sets the GPUs of pods without an assignment for which unseen is true, from the attributed grants
// of their init containers.
func (b *podStates) locateUnseen() {
	for _, g := range b.Attributed {
		i := slices.IndexFunc(b.pods, func(t *podState) bool { return t.Pod == g.Pod && unseen(t.Request) && t.Assignment.None() })
		if i < 0 || g.Container.Kind != placement.Init || g.ofAnother(b.Allocated) {
			continue
		}
		if grant, err := Resolve(b.State, g.Slots[0].Resource(), g.Slots); err == nil {
			b.pods[i].Assignment = grant.assignment().WithShares(b.pods[i].Request)
		}
	}
}

// ofAnother reports whether the kubelet lists slots of the grant at another pod.
func (g Attributed) ofAnother(held []Allocated) bool {
	return slices.ContainsFunc(held, func(h Allocated) bool {
		return !h.BelongsTo(g.Pod) && slices.ContainsFunc(g.Slots, func(id gpu.SlotID) bool { return slices.Contains(h.Slots, id) })
	})
}
