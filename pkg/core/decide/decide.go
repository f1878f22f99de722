package decide

import (
	"slices"

	"github.com/gpumem/gpumem/pkg/core/closest"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Decide chooses GPUs of a node for a pod that holds nothing of it yet, and
// leaves to nominated pods what is theirs. The policy is the cluster's, for pods
// that name none. The cache reserves what Decide chooses; to those who only ask,
// it promises nothing.
func Decide(n placement.Node, pod placement.PodRef, req placement.Request, policy placement.Policy) (placement.Assignment, *Refusal) {
	n = Reserved(n, pod, req, policy)
	chosen, verdict := placement.Choose(policy, req, n)
	if !verdict.Fits() {
		why := verdict // it is kept, and where the pod fits, nothing is
		return placement.Assignment{}, &Refusal{
			Reason: why.Reason.String(), Verdict: &why, Gap: closest.Of(why),
			Unresolvable: why.Unresolvable(), Temporary: why.Reason >= placement.Occupied && fitsOnceSettled(n, req, policy),
		}
	}
	if other, ok := confusedWith(n, pod, req, chosen); ok {
		return placement.Assignment{}, &Refusal{Reason: Confusable, Pod: other, Temporary: true}
	}
	return chosen, nil
}

// fitsOnceSettled reports whether the request fits once the node has placed each pod on its GPUs. Until
// then a pod without a GPU counts on each of them, and one that is moved counts where it was as well.
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

// confusedWith returns a pod of the node that the kubelet has not admitted yet
// and could take for this one, to the harm of either. A pod that has waited for
// long for others to be admitted counts too: it would never go there otherwise
// while there is always one more of them.
func confusedWith(n placement.Node, pod placement.PodRef, req placement.Request, chosen placement.Assignment) (placement.PodRef, bool) {
	harm := func(h placement.Holding) bool {
		waits := h.Nominated && !h.Waits.IsZero()
		return !h.Admitted && (!h.Nominated || waits) && h.Pod.UID != pod.UID &&
			h.Request.Confusable(req) && !h.Request.Interchangeable(req) && (waits || !h.Assignment.SameDevices(chosen))
	}
	for _, d := range n.Devices {
		if i := slices.IndexFunc(d.Pods, harm); i >= 0 {
			return d.Pods[i].Pod, true
		}
	}
	if i := slices.IndexFunc(n.Unattributed, harm); i >= 0 {
		return n.Unattributed[i].Pod, true
	}
	return placement.PodRef{}, false
}

// Refusal is why a pod cannot go to a node. It is an error; what people read is made of it by
// package reasons.
type Refusal struct {
	Reason  string             // in a word: the verdict's, Confusable, Elsewhere, or that of who found it
	Verdict *placement.Verdict // on the node's GPUs; nil: they are not what is in the way
	Gap     closest.Gap        // of the verdict

	Pod     placement.PodRef // of Confusable: the other pod
	Node    string           // of Elsewhere: where the pod is
	Assumed bool             // of Elsewhere: the outcome of its binding is not known yet
	Message string           // of any other reason: what is said of it

	Unresolvable bool // whatever pods leave the node
	Temporary    bool // it ends by itself, within about a second: no pod has to leave
}

// What else can be in the way than a verdict says, in a word.
const (
	Confusable = "Confusable" // the kubelet could take the pod for another, and has admitted neither
	Elsewhere  = "Elsewhere"  // the pod is on a node already
)

func (r *Refusal) Error() string { return r.Reason }
