package preemption

import (
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/placement"
)

// Reserved returns the node as one pod finds it: the nominated pods that go
// before it hold their memory, on the GPUs that they are nominated to, or where
// they fit, or else where room is being made for them.
//
// Those go before it that have its priority or a higher one. A pod that is
// nominated to the node itself goes before its equals behind it in line, so that
// no two of them wait for one another.
func Reserved(n placement.Node, pod placement.PodRef, req placement.Request, fallback placement.Policy) placement.Node {
	ahead := slices.IndexFunc(n.Nominated, func(h placement.Holding) bool { return h.Pod.UID == pod.UID })
	if ahead < 0 {
		ahead = len(n.Nominated)
	}
	for _, h := range n.Nominated[:ahead] {
		if h.Request.Priority >= req.Priority {
			if h.Nominated = true; h.Assignment.None() {
				h.Assignment = landing(n, h.Request, fallback)
			}
			n = n.With(h)
		}
	}
	return n
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
