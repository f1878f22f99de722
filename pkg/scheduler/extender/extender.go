package extender

import (
	"context"
	"time"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// Extender answers the verbs. Its fields are not changed once it serves.
type Extender struct {
	decider.Decider

	// Alone has Filter name the best node alone. Otherwise Prioritize scores those
	// that fit, next to kube-scheduler's own scores.
	Alone bool

	// NodesToFind is how many of all nodes a kube-scheduler looks for that asks about a
	// sample; nil: as many as by default.
	NodesToFind func(all int) int

	Neighbours Neighbours // of the pods that may be evicted

	// Answered gets how long a verb took; nil where no one wants to know.
	Answered func(verb string, took time.Duration)

	looks looks
}

// Bind chooses the pod's GPUs on the node and binds it there.
func (e *Extender) Bind(asked context.Context, args *extenderv1.ExtenderBindingArgs) *extenderv1.ExtenderBindingResult {
	ref := placement.PodRef{Namespace: args.PodNamespace, Name: args.PodName, UID: string(args.PodUID)}
	if err := e.Decider.Bind(asked, ref, args.Node); err != nil {
		return &extenderv1.ExtenderBindingResult{Error: passedOn(reasons.Error(err))}
	}
	return &extenderv1.ExtenderBindingResult{}
}
