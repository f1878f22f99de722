package decide

import (
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/preemption"
)

// Reserved returns the node as one pod finds it: the nominated pods that go
// before it hold their memory, on the GPUs that they are nominated to, or where
// they fit, or else where pods leave for them. The others do not count for it,
// and are not in the node that is returned: Reserved of that is the same node.
//
// Those go before it that have its priority or a higher one. A pod that is
// nominated to the node itself goes before its equals behind it in line, so that
// no two of them wait for one another. Where both are nominated to GPUs that are
// known, and these differ, neither does.
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

// apart reports whether two pods come to GPUs that are known, and none of them the same.
func apart(a, b placement.Assignment) bool {
	return !a.None() && !b.None() && !slices.ContainsFunc(a.Devices(), func(id gpu.UUID) bool { return slices.Contains(b.Devices(), id) })
}

// Promised returns the node with all nominated pods on it, as a pod finds it that
// goes after each of them.
func Promised(n placement.Node, policy placement.Policy) placement.Node {
	return Reserved(n, placement.PodRef{}, placement.Request{Priority: math.MinInt32}, policy)
}

// landing is where a nominated pod goes: none when it does not fit the node,
// whichever pods leave.
func landing(n placement.Node, req placement.Request, policy placement.Policy) placement.Assignment {
	if !placement.Fit(req, n).Fits() {
		victims, _ := preemption.Preempt(req, n, nil, nil)
		n = n.Without(victims.Pods)
	}
	chosen, _ := placement.Choose(policy, req, n)
	return chosen
}
