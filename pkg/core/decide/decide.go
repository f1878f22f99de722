package decide

import (
	"slices"

	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Decide picks GPUs of a node for a pod that has no allocation there, and respects the reservations of
// nominated pods. Parameter policy is the cluster's policy, for pods that name none. The cache reserves
// the GPUs; for other callers the result is not binding.
func Decide(n placement.Node, pod placement.PodRef, req placement.Request, policy placement.Policy) (placement.Assignment, *Refusal) {
	n = Reserved(n, pod, req, policy)
	chosen, verdict := placement.Choose(policy, req, n)
	if !verdict.Fits() {
		why := verdict // a copy, so that a pod that fits allocates nothing
		return placement.Assignment{}, &Refusal{
			Reason: why.Reason.String(), Verdict: &why, Gap: nearmiss.GapOf(why),
			Unresolvable: why.Unresolvable(), Temporary: why.Reason >= placement.Occupied && fitsOnceSettled(n, req, policy),
		}
	}
	if other, ok := confusedWith(n, pod, req, chosen); ok {
		return placement.Assignment{}, &Refusal{Reason: Confusable, Pod: other, Temporary: true}
	}
	return chosen, nil
}

// fitsOnceSettled reports whether the request fits after the device plugin has published the final GPUs
// of each pod. Until then a pod without a known GPU is charged to each GPU, and a moved pod also to its
// old GPUs.
func fitsOnceSettled(n placement.Node, req placement.Request, policy placement.Policy) bool {
	moved := slices.DeleteFunc(n.Holdings(), func(h placement.Holding) bool { return len(h.Assignment.Leaving) == 0 })
	unplaced := slices.DeleteFunc(slices.Clone(n.Unattributed), func(h placement.Holding) bool { return !h.Assignment.None() })
	if len(moved)+len(unplaced) == 0 {
		return false
	}
	n = n.Without(slices.Concat(moved, unplaced))
	for _, h := range moved {
		h.Assignment.Leaving = nil
		n = n.With(h)
	}
	pod := placement.Holding{Request: req}
	for _, h := range append([]placement.Holding{pod}, unplaced...) {
		var verdict placement.Verdict
		if h.Assignment, verdict = placement.Choose(policy, h.Request, n); !verdict.Fits() {
			return false
		}
		n = n.With(h)
	}
	return true
}

// confusedWith returns a pod of the node that the kubelet has not admitted yet and could confuse with
// this pod, to the harm of either. It also returns a nominated pod that has waited long for the kubelet
// to admit other pods. Otherwise a steady stream of confusable pods would keep the nominated pod out
// forever.
func confusedWith(n placement.Node, pod placement.PodRef, req placement.Request, chosen placement.Assignment) (placement.PodRef, bool) {
	harm := func(h *placement.Holding) bool {
		waits := h.Nominated && !h.Waits.IsZero()
		return !h.Admitted && (!h.Nominated || waits) && h.Pod.UID != pod.UID &&
			h.Request.Confusable(req) && !h.Request.Interchangeable(req) && (waits || !h.Assignment.SameDevices(chosen))
	}
	for _, d := range n.Devices {
		if i := slices.IndexFunc(d.Pods, harm); i >= 0 {
			return d.Pods[i].Pod, true
		}
	}
	for i := range n.Unattributed {
		if h := &n.Unattributed[i]; harm(h) {
			return h.Pod, true
		}
	}
	return placement.PodRef{}, false
}

// Refusal is the error for a pod that cannot go to a node. Package reasons renders it for people.
type Refusal struct {
	Reason  string             // one word: the verdict's, Confusable, Elsewhere, or the caller's own
	Verdict *placement.Verdict // on the node's GPUs; nil if the GPUs are not the reason
	Gap     nearmiss.Gap       // distance of the verdict from a fit

	Pod     placement.PodRef // for Confusable: the other pod
	Node    string           // for Elsewhere: the pod's node
	Assumed bool             // for Elsewhere: the outcome of the binding is unknown yet
	Message string           // for any other reason: the message

	Unresolvable bool // no eviction from the node helps
	Temporary    bool // resolves by itself within about a second, without evictions
}

// Reasons that no verdict has.
const (
	Confusable = "Confusable" // the kubelet could confuse the pod with another, and has admitted neither
	Elsewhere  = "Elsewhere"  // the pod is on a node already
)

func (r *Refusal) Error() string { return r.Reason }
