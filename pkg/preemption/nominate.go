package preemption

import (
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

// Reserved returns the node as one pod finds it: the nominated pods that go
// before it hold their memory, on the GPUs that they are nominated to, or where
// they fit, or else where room is being made for them.
//
// Those go before it that have its priority or a higher one. A pod that is
// nominated to the node itself goes before its equals behind it in line, so that
// no two of them wait for one another. Where it is said to which GPUs both come, and
// they are others, neither does.
func Reserved(n placement.Node, pod placement.PodRef, req placement.Request, fallback placement.Policy) placement.Node {
	ahead := slices.IndexFunc(n.Nominated, func(h placement.Holding) bool { return h.Pod.UID == pod.UID })
	if ahead < 0 {
		ahead = len(n.Nominated)
	}
	var own placement.Assignment
	if ahead < len(n.Nominated) {
		own = n.Nominated[ahead].Assignment
	}
	for i, h := range n.Nominated {
		if h.Request.Priority < req.Priority || i == ahead || i > ahead && !apart(own, h.Assignment) {
			continue
		}
		if h.Nominated = true; h.Assignment.None() {
			h.Assignment = landing(n, h.Request, fallback)
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
func Promised(n placement.Node, fallback placement.Policy) placement.Node {
	return Reserved(n, placement.PodRef{}, placement.Request{Priority: math.MinInt32}, fallback)
}

// landing is where a nominated pod goes: none when it does not fit the node,
// whoever leaves.
func landing(n placement.Node, req placement.Request, fallback placement.Policy) placement.Assignment {
	if !placement.Fit(req, n).Fits() {
		victims, _ := makeRoom(req, n, nil)
		n = n.Without(victims)
	}
	chosen, _ := placement.Choose(fallback, req, n)
	return chosen
}
