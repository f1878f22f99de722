package allocation

import (
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Correction is a change of a pod's assignment annotation.
type Correction struct {
	Pod    Pod
	Actual placement.Assignment
}

// Moves reports whether the correction changes the pod's GPUs.
func (c Correction) Moves() bool { return !c.Actual.SameDevices(c.Pod.Assignment) }

// HasRequestedCount reports whether the pod has as many GPUs as it requests.
func (c Correction) HasRequestedCount() bool { return len(c.Actual.Shares) == c.Pod.Request.GPUs() }

// Whole reports whether the correction can be written: the pod has as many GPUs as it requests, or all GPUs of
// its slots are known. In the second case the assignment overrides the requested number
// (placement.Assignment.Allocated).
func (c Correction) Whole() bool { return c.HasRequestedCount() || c.Actual.Allocated }

// Reconcile returns corrections for pods whose annotations differ from their allocations, and for waiting pods
// that inherit the plan of such a pod. If a waiting pod kept its annotation, two pods would count on one GPU,
// and none on the other.
//
// If several pods move, they count on their old GPUs too (Assignment.Leaving) until all corrections are
// written. A later call of Reconcile then removes the old GPUs.
//
// Reconcile uses only the allocations of admitted pods. The kubelet names pods without UID. While a pod's admission is
// uncertain, its entry can belong to a force-deleted pod of the same name. For the same reason, State.Pods must have
// been read before State.Allocated. Pods that are interchangeable with a listed pod whose admission is uncertain keep
// their annotated GPUs, because that pod may have the GPU that seems free. Reconcile cannot correct a waiting pod if
// the node lacks its GPUs. The pod counts on each GPU until it has slots.
func Reconcile(s State) []Correction {
	b := byPod(s)
	doubtful := filter(b.pods, func(t *podState) bool { return !t.Admitted && t.isServed() })
	for _, t := range doubtful {
		t.allocations = nil
	}
	b.locate()
	var out []Correction
	moving := 0
	for _, t := range b.pods {
		c := Correction{Pod: t.pod, Actual: t.Assignment}
		standsIn := func(o *podState) bool { return o.Request.Interchangeable(t.Request) }
		if c.Actual.None() || c.Actual.Same(c.Pod.Assignment) || !b.hasDevices(c.Actual) ||
			!c.Pod.Assignment.None() && slices.ContainsFunc(doubtful, standsIn) {
			continue
		}
		if c.Moves() && c.Whole() {
			moving++
		}
		out = append(out, c)
	}
	for i, c := range out {
		if moving > 1 || moving == 1 && !c.Moves() {
			written := append(c.Pod.Assignment.Devices(), c.Pod.Assignment.Leaving...)
			out[i].Actual.Leaving = slices.DeleteFunc(written, func(id gpu.UUID) bool {
				_, ours := s.Inventory.Device(id)
				return !ours || slices.Contains(c.Actual.Devices(), id)
			})
		}
	}
	return slices.DeleteFunc(out, func(c Correction) bool { return c.Actual.Same(c.Pod.Assignment) })
}
