package decide

import (
	"fmt"
	"slices"

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
		return placement.Assignment{}, unfit(verdict)
	}
	if other, ok := confusedWith(n, pod, req, chosen); ok {
		return placement.Assignment{}, confusable(other)
	}
	return chosen, nil
}

// confusedWith returns a pod of the node that the kubelet has not admitted yet
// and could take for this one, to the harm of either.
func confusedWith(n placement.Node, pod placement.PodRef, req placement.Request, chosen placement.Assignment) (placement.PodRef, bool) {
	harm := func(h placement.Holding) bool {
		return !h.Admitted && !h.Nominated && h.Pod.UID != pod.UID &&
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

// Refusal is why a pod cannot go to a node. It is an error, whose text is Message.
type Refusal struct {
	Reason  string // in a word: the verdict's, Confusable, Elsewhere, or that of who found it
	Message string
	Verdict *placement.Verdict // on the node's GPUs; nil: they are not what is in the way
	Gap     placement.Gap      // of the verdict

	Unresolvable bool // whatever pods leave the node
}

// What else can be in the way than a verdict says, in a word.
const (
	Confusable = "Confusable" // the kubelet could take the pod for another, and has admitted neither
	Elsewhere  = "Elsewhere"  // the pod is on a node already
)

func (r *Refusal) Error() string { return r.Message }

func unfit(v placement.Verdict) *Refusal {
	return &Refusal{Reason: v.Reason.String(), Message: v.String(), Verdict: &v, Gap: v.Gap(), Unresolvable: v.Unresolvable()}
}

func confusable(with placement.PodRef) *Refusal {
	return &Refusal{
		Reason:  Confusable,
		Message: fmt.Sprintf("waits until pod %s has been admitted by the kubelet, which could take one for the other", with),
	}
}

// NewElsewhere refuses a pod that is on a node; assumed: the outcome of its
// binding is not known yet.
func NewElsewhere(node string, assumed bool) *Refusal {
	message := "the pod is bound to node " + node
	if assumed {
		message = fmt.Sprintf("the outcome of binding the pod to node %s is not known yet", node)
	}
	return &Refusal{Reason: Elsewhere, Message: message}
}
