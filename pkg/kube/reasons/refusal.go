package reasons

import (
	"errors"
	"fmt"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Refusal renders the reason why a pod cannot go to a node.
func Refusal(r *decide.Refusal) string {
	switch {
	case r.Verdict != nil:
		return Verdict(*r.Verdict)
	case r.Reason == decide.Confusable:
		return fmt.Sprintf("waits until the kubelet has admitted pod %s, because the kubelet could confuse the two", r.Pod)
	case r.Reason == decide.Elsewhere && r.Assumed:
		return fmt.Sprintf("the outcome of binding the pod to node %s is not known yet", r.Node)
	case r.Reason == decide.Elsewhere:
		return "the pod is bound to node " + r.Node
	default:
		return r.Message
	}
}

// Counted converts the text of a refusal for kube-scheduler. kube-scheduler's Events put the number of nodes before the
// converted text: "2 node(s) unfit: the pod needs 3 GiB on one GPU". The texts of most verdicts start with a verb, and
// their subject is the pod.
func Counted(r *decide.Refusal, text string) string {
	if r.Reason == decide.Confusable || r.Verdict != nil && r.Verdict.Reason != placement.NoDevices {
		text = "the pod " + text
	}
	return "node(s) unfit: " + text
}

// Error renders an error. For a refusal by the core, it renders the reason.
func Error(err error) string {
	var refusal *decide.Refusal
	var unfit *placement.Unfit
	var broken *gpu.OutOfUse
	var lacking *placement.Short
	switch {
	case errors.As(err, &refusal):
		return Refusal(refusal)
	case errors.As(err, &unfit):
		return fmt.Sprintf("pod %s %s", unfit.Pod, Verdict(unfit.Verdict))
	case errors.As(err, &broken):
		return fmt.Sprintf("%v: %s", broken, Causes(broken.Device.Status))
	case errors.As(err, &lacking):
		return renderShortage(lacking)
	default:
		return err.Error()
	}
}
