package placement

import (
	"math"
	"slices"
)

// WithNominated returns the node with pods that are to come to it, in line by
// priority.
func (n Node) WithNominated(pods []Holding) Node {
	n.Nominated = slices.Clone(pods)
	slices.SortFunc(n.Nominated, MoreImportant)
	return n
}

// Reserved returns the node as one pod finds it: the nominated pods that go
// before it hold their memory, on the GPUs where they fit, or else where room is
// being made for them.
//
// Those go before it that have its priority or a higher one. A pod that is
// nominated to the node itself goes before its equals behind it in line, so that
// no two of them wait for one another.
func (n Node) Reserved(pod PodRef, req Request, fallback Policy) Node {
	ahead := slices.IndexFunc(n.Nominated, func(h Holding) bool { return h.Pod.UID == pod.UID })
	if ahead < 0 {
		ahead = len(n.Nominated)
	}
	for _, h := range n.Nominated[:ahead] {
		if h.Request.Priority >= req.Priority {
			h.Assignment, h.Nominated = n.landing(h.Request, fallback), true
			n = n.With(h)
		}
	}
	return n
}

// Promised returns the node with all nominated pods on it, as a pod finds it that
// goes after each of them.
func (n Node) Promised(fallback Policy) Node {
	return n.Reserved(PodRef{}, Request{Priority: math.MinInt32}, fallback)
}

// landing is where a nominated pod goes: none when it does not fit the node,
// whoever leaves.
func (n Node) landing(req Request, fallback Policy) Assignment {
	if !Fit(req, n).Fits() {
		victims, _ := makeRoom(req, n, nil)
		n = n.Without(victims)
	}
	chosen, _ := Choose(fallback, req, n)
	return chosen
}
