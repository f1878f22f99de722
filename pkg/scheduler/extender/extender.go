package extender

import (
	"context"
	"time"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// Extender handles the requests of kube-scheduler. Its fields must not change after the first request.
type Extender struct {
	decider.Decider

	// Alone makes Filter return only the best node, unless the pod itself prefers some nodes. Otherwise,
	// Prioritize scores the feasible nodes, and kube-scheduler adds its own scores.
	Alone bool

	// NodesToFind returns the number of feasible nodes at which kube-scheduler ends its search and sends a
	// request. Its argument is the number of nodes in the cluster. If NodesToFind is nil, kube-scheduler's
	// default applies.
	NodesToFind func(all int) int

	Neighbours Neighbours // the pods that may be evicted

	// Answered receives the duration of each request; nil: durations are not reported.
	Answered func(verb string, took time.Duration)

	rechecks recheckBudget
}

// Bind picks the pod's GPUs on the node and binds the pod.
func (e *Extender) Bind(asked context.Context, args *extenderv1.ExtenderBindingArgs) *extenderv1.ExtenderBindingResult {
	ref := placement.PodRef{Namespace: args.PodNamespace, Name: args.PodName, UID: string(args.PodUID)}
	if err := e.Decider.Bind(asked, ref, args.Node); err != nil {
		return &extenderv1.ExtenderBindingResult{Error: replacePercent(reasons.Error(err))}
	}
	return &extenderv1.ExtenderBindingResult{}
}
