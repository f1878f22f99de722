package decide

import (
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/preemption"
)

// Reserved returns the node with the nominated pods that precede a pod, charged to their GPUs: the GPUs
// that they are nominated to, those where they fit, or those that other pods will leave. It drops the
// other nominated pods, so Reserved of the result returns the same node.
//
// Nominated pods of equal or higher priority precede the pod. If the pod is itself nominated to the
// node, only those before it in the queue precede it, so that no two pods wait for each other. A pod
// behind it is charged nevertheless if both nominations name GPUs and have none in common.
func Reserved(n placement.Node, pod placement.PodRef, req placement.Request, policy placement.Policy) placement.Node {
	line := n.Nominated
	n.Nominated = nil
	ahead, own := len(line), placement.Assignment{}
	if i := slices.IndexFunc(line, func(h placement.Holding) bool { return h.Pod.UID == pod.UID }); i >= 0 {
		ahead, own = i, line[i].Assignment
	}
	for i, h := range line {
		if h.Request.Priority < req.Priority || i == ahead || i > ahead && !apart(own, h.Assignment) {
			continue
		}
		if h.Nominated = true; h.Assignment.None() {
			h.Assignment = landing(n, h.Request, policy)
		}
		n = n.With(h)
	}
	return n
}

// apart reports whether two assignments are known and share no GPU.
func apart(a, b placement.Assignment) bool {
	return !a.None() && !b.None() && !slices.ContainsFunc(a.Devices(), func(id gpu.UUID) bool { return slices.Contains(b.Devices(), id) })
}

// Promised returns the node with all nominated pods, for a pod that all of them precede.
func Promised(n placement.Node, policy placement.Policy) placement.Node {
	return Reserved(n, placement.PodRef{}, placement.Request{Priority: math.MinInt32}, policy)
}

// landing returns the assignment of a nominated pod. It is empty if the pod does not fit the node, even
// after evictions.
func landing(n placement.Node, req placement.Request, policy placement.Policy) placement.Assignment {
	if !placement.Fit(req, n).Fits() {
		victims, _ := preemption.Preempt(req, n, nil, nil)
		n = n.Without(victims.Pods)
	}
	chosen, _ := placement.Choose(policy, req, n)
	return chosen
}
