package allocation

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Admit checks a grant, before the kubelet has recorded it, against the pods
// that wait for it: some pod must want that amount over as many GPUs, and on
// those where it is already, and no other may have been given the slots, or else
// the container must not start. ErrNoPod means that no pod asks for this amount.
//
// It returns for which container the kubelet is likeliest to have asked.
func Admit(s State, g Grant) (Attributed, error) {
	for _, h := range s.Allocated {
		if i := slices.IndexFunc(g.Slots, func(id gpu.SlotID) bool { return slices.Contains(h.Slots, id) }); i >= 0 {
			return Attributed{}, fmt.Errorf("slot %s belongs to container %s of pod %s/%s", g.Slots[i], h.Container, h.Namespace, h.Name)
		}
	}
	b := byPod(s)
	b.locate()
	var first error
	for _, t := range b.asking(g) {
		err := b.admit(t, g)
		if err == nil {
			return b.given(t, g), nil
		}
		first = cmp.Or(first, err)
	}
	return Attributed{}, cmp.Or(first, ErrNoPod)
}

// asking returns the pods that the container of a grant could be of, the
// likeliest first: those that the kubelet lists, if there is one, and unlike
// waitingFor also one whose init containers have been served without a trace. Those
// come last that it has admitted, or that were given this amount before.
func (b *podStates) asking(g Grant) []*podState {
	asking := those(b.pods, func(t *podState) bool {
		return len(t.wanting(g.Resource, g.size())) > 0
	})
	given := g.assignment()
	slices.SortFunc(asking, func(x, y *podState) int {
		return cmp.Or(
			placement.CompareBool(x.Admitted, y.Admitted),
			placement.CompareBool(b.had(x, g.Resource, g.size()), b.had(y, g.Resource, g.size())),
			compareBegun(x, y),
			placement.CompareBool(y.written.SameDevices(given), x.written.SameDevices(given)),
			compareAge(x, y),
		)
	})
	return preferring(asking, b.listed)
}

func (b *podStates) admit(t *podState, g Grant) error {
	if t.Request.GPUs() != len(g.Devices) {
		return fmt.Errorf("pod %s is to have %d GPUs, and the kubelet took slots of %d", t.Pod, t.Request.GPUs(), len(g.Devices))
	}
	if t.written.None() && !b.PlaceUnassigned {
		return unplaced(t.Pod)
	}
	empty := placement.Fit(t.Request, placement.NewNode("", b.Inventory, nil))
	if empty.Reason == placement.WeakerEnforcement {
		return &placement.Unfit{Pod: t.Pod, Verdict: empty}
	}
	if given := g.assignment(); !t.actual.None() && !t.actual.SameDevices(given) {
		return fmt.Errorf("pod %s is on GPU %v, and the kubelet took slots of %v", t.Pod, t.actual.Devices(), given.Devices())
	}
	return nil
}

// given says to which container of a pod a grant goes: the first that may lack it
// and was not given anything before.
func (b *podStates) given(t *podState, g Grant) Attributed {
	out := Attributed{Pod: t.Pod, Slots: g.Slots}
	for _, c := range t.wanting(g.Resource, g.size()) {
		if out.Container = c; !b.before(t, c, g.Resource) {
			break
		}
	}
	return out
}

// before reports whether a container of a pod was given some of a resource before.
func (b *podStates) before(t *podState, c placement.Container, r gpu.Resource) bool {
	return slices.ContainsFunc(b.Attributed, func(o Attributed) bool {
		return !o.Earlier && o.Pod == t.Pod && o.Container.Name == c.Name && o.Slots[0].Resource() == r
	})
}

// had reports whether all containers of a pod that ask for an amount were given it before, of
// which nothing shows.
func (b *podStates) had(t *podState, r gpu.Resource, size int) bool {
	return !slices.ContainsFunc(t.wanting(r, size), func(c placement.Container) bool { return !b.before(t, c, r) })
}
