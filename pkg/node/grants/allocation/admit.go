package allocation

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Admit checks a grant before the kubelet records it, and returns the containers for which the kubelet may have
// called: one for each possible pod, the likeliest first. If Admit returns an error, the container must not
// start. Some pod on the node must still request the grant's amount on the same number of GPUs. If this pod
// already has GPUs, the grant must be on them. No other container may have any of the slots. ErrNoPod means
// that no pod requests the amount.
func Admit(s State, g Grant) (possible []Attributed, _ error) {
	for _, h := range s.Allocated {
		if i := slices.IndexFunc(g.Slots, func(id gpu.SlotID) bool { return slices.Contains(h.Slots, id) }); i >= 0 {
			return nil, fmt.Errorf("slot %s belongs to container %s of pod %s/%s", g.Slots[i], h.Container, h.Namespace, h.Name)
		}
	}
	b := byPod(s)
	b.locate()
	var first error
	for _, t := range b.asking(g) {
		if err := b.admit(t, g); err != nil {
			first = cmp.Or(first, err)
			continue
		}
		possible = append(possible, b.attribute(t, g))
	}
	if len(possible) > 0 {
		return possible, nil
	}
	return nil, cmp.Or(first, ErrNoPod)
}

// asking returns the pods to which the grant's container may belong, the likeliest first. If the kubelet lists
// some of these pods, asking returns only the listed ones. Unlike waitingFor, it includes pods whose init
// containers already have grants, because the kubelet never lists these containers. Pods that the kubelet has
// admitted come last. Among the other pods, those with attributed grants of this amount come last.
func (b *podStates) asking(g Grant) []*podState {
	asking := filter(b.pods, func(t *podState) bool {
		return len(t.unservedWith(g.Resource, g.size())) > 0
	})
	given := g.assignment()
	slices.SortFunc(asking, func(x, y *podState) int {
		return cmp.Or(
			placement.CompareBool(x.Admitted, y.Admitted),
			placement.CompareBool(b.allAttributed(x, g.Resource, g.size()), b.allAttributed(y, g.Resource, g.size())),
			compareBegun(x, y),
			placement.CompareBool(y.written.SameDevices(given), x.written.SameDevices(given)),
			compareAge(x, y),
		)
	})
	return preferMatching(asking, b.isListed)
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

// attribute returns the pod's container to which a grant most likely belongs: the first container that may lack
// the resource and has no attributed grant of it yet, or else the last container that may lack it.
func (b *podStates) attribute(t *podState, g Grant) Attributed {
	out := Attributed{Pod: t.Pod, Slots: g.Slots}
	for _, c := range t.unservedWith(g.Resource, g.size()) {
		if out.Container = c; !b.isAttributed(t, c, g.Resource) {
			break
		}
	}
	return out
}

// isAttributed reports whether a container already has an attributed grant of a resource. It ignores earlier
// grants, which the kubelet may have lost.
func (b *podStates) isAttributed(t *podState, c placement.Container, r gpu.Resource) bool {
	return slices.ContainsFunc(b.Attributed, func(o Attributed) bool {
		return !o.Earlier && o.Pod == t.Pod && o.Container.Name == c.Name && o.Slots[0].Resource() == r
	})
}

// allAttributed reports whether all containers of a pod that may lack this amount already have attributed
// grants of the resource.
func (b *podStates) allAttributed(t *podState, r gpu.Resource, size int) bool {
	return !slices.ContainsFunc(t.unservedWith(r, size), func(c placement.Container) bool { return !b.isAttributed(t, c, r) })
}
