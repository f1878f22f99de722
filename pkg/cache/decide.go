package cache

import (
	"fmt"
	"slices"

	"github.com/gpumem/gpumem/pkg/placement"
)

// Decide chooses GPUs of a node for a pod that holds nothing of it yet, and
// leaves to nominated pods what is theirs. It is what AssumePod reserves by; to
// those who only ask, it promises nothing.
//
// The error is an *UnfitError or a *WaitError.
func Decide(n placement.Node, ref placement.PodRef, req placement.Request, fallback placement.Policy) (placement.Assignment, error) {
	n = n.Reserved(ref, req, fallback)
	chosen, verdict := placement.Choose(fallback, req, n)
	if !verdict.Fits() {
		return placement.Assignment{}, &UnfitError{verdict}
	}
	if other, ok := confusedWith(n, ref, req, chosen); ok {
		return placement.Assignment{}, &WaitError{For: other}
	}
	return chosen, nil
}

// confusedWith returns a pod of the node that the kubelet has not admitted yet
// and could take for this one, to the harm of either.
func confusedWith(n placement.Node, ref placement.PodRef, req placement.Request, chosen placement.Assignment) (placement.PodRef, bool) {
	harm := func(h placement.Holding) bool {
		return !h.Settled && !h.Nominated && h.Pod.UID != ref.UID &&
			h.Request.Confusable(req) && !h.Request.Interchangeable(req) && !h.Assignment.SameDevices(chosen)
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

// UnfitError says that a request does not fit the node.
type UnfitError struct{ placement.Verdict }

func (e *UnfitError) Error() string { return e.Verdict.String() }

// WaitError says that a pod must wait for another to be admitted by the kubelet.
type WaitError struct{ For placement.PodRef }

func (e *WaitError) Error() string {
	return fmt.Sprintf("waits until pod %s has been admitted by the kubelet, which could take one for the other", e.For)
}

// ElsewhereError says that a pod is on a node already.
type ElsewhereError struct {
	Node    string
	Assumed bool // the outcome of its binding is not known yet
}

func (e *ElsewhereError) Error() string {
	if e.Assumed {
		return fmt.Sprintf("the outcome of binding the pod to node %s is not known yet", e.Node)
	}
	return fmt.Sprintf("the pod is bound to node %s", e.Node)
}
