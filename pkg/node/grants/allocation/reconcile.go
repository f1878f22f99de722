package allocation

import (
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Correction is what should be written of a pod.
type Correction struct {
	Pod    Pod
	Actual placement.Assignment
}

// Moves reports whether the correction names other GPUs than what is written.
func (c Correction) Moves() bool { return !c.Actual.SameDevices(c.Pod.Assignment) }

// Asked reports whether the pod has as many GPUs as it asks for.
func (c Correction) Asked() bool { return len(c.Actual.Shares) == c.Pod.Request.GPUs() }

// Whole reports whether all GPUs are known whose slots the kubelet has given the pod: otherwise
// there is nothing true that could be written. Where they are not as many as it asks
// for by now, what is written stands above that (placement.Assignment.Allocated).
func (c Correction) Whole() bool { return c.Asked() || c.Actual.Allocated }

// Reconcile returns the pods whose annotations say something else than what the
// kubelet gave them, and those that wait and are to have what such a pod has
// left: were they not moved with it, their GPU would be promised twice, and
// the one that was left not at all.
//
// Where several move, they leave their old GPUs only once all of them have been
// written: that is for a later call to return.
//
// Only what settled pods hold counts. The kubelet names pods without their UID:
// what it lists for one that it may not have admitted yet can be of another,
// deleted by force, that had the name before. For the same reason State.Pods
// must have been read before State.Allocated. Pods that can stand in for one
// whose own is not known yet stay where they are written to be: it may have the GPU
// that seems to be left. Nothing can be written of a pod that waits and whose GPUs the
// node lacks: it counts on each until it is served.
func Reconcile(s State) []Correction {
	b := byPod(s)
	doubtful := those(b.pods, func(t *podState) bool { return !t.Admitted && t.begun() })
	for _, t := range doubtful {
		t.held = nil
	}
	b.locate()
	var out []Correction
	moving := 0
	for _, t := range b.pods {
		c := Correction{Pod: t.pod, Actual: t.Assignment}
		standsIn := func(o *podState) bool { return o.Request.Interchangeable(t.Request) }
		if c.Actual.None() || c.Actual.Same(c.Pod.Assignment) || !b.has(c.Actual) ||
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
