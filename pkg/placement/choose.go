package placement

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// Choose picks the GPUs of a node for a request, by the request's policy or
// else by fallback. The verdict says why when the assignment is none.
//
// Binpack takes the devices on which the least stays free (best fit), Spread
// those with the most free; a device that already holds a pod of the same
// group comes before all others. Ties fall to the lowest index. As a fallback,
// Exclusive is no more than Binpack: whom a pod keeps off must be in the pod.
func Choose(fallback Policy, req Request, node Node) (Assignment, Verdict) {
	fitting, reason := candidates(req, node)
	verdict := Verdict{Reason: reason, Request: req, Node: node}
	if reason != Fits {
		return Assignment{}, verdict
	}
	byPreference := func(a, b Device) int {
		return cmp.Or(
			-compareBool(req.inGroup(a), req.inGroup(b)),
			compareFree(cmp.Or(req.Policy, fallback), a.Free(), b.Free()),
			cmp.Compare(a.Index, b.Index),
		)
	}
	slices.SortFunc(fitting, byPreference)
	fitting = fitting[:req.GPUs()]
	slices.SortFunc(fitting, func(a, b Device) int { return cmp.Compare(a.Index, b.Index) })
	units, cores := req.Share()
	shares := make([]Share, 0, len(fitting))
	for _, d := range fitting {
		shares = append(shares, Share{Device: d.UUID, Units: units, Cores: cores})
	}
	return Assignment{Shares: shares}, verdict
}

func compareFree(p Policy, a, b gpu.Units) int {
	if p == Spread {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}

func (r Request) inGroup(d Device) bool {
	return r.Group != "" && slices.ContainsFunc(d.Pods, func(h Holding) bool { return h.Request.Group == r.Group })
}

// MaxScore is the highest score that Rank gives, k8s.io/kube-scheduler's
// MaxExtenderPriority.
const MaxScore = 10

// Rank scores nodes for a request, from 0 to MaxScore, in their order.
//
// The best node alone gets MaxScore and the others share the rest by rank:
// eleven levels are too coarse to carry a measure, and nodes that tie at the
// top would be drawn by lot. Binpack prefers the node on whose chosen GPU the
// least stays free, and among equals the fullest node; Spread the reverse. A
// node on which the request does not fit gets 0.
func Rank(fallback Policy, req Request, nodes []Node) []int64 {
	policy := cmp.Or(req.Policy, fallback)
	entries := make([]ranked, 0, len(nodes))
	for i := range nodes {
		chosen, verdict := Choose(fallback, req, nodes[i])
		if verdict.Fits() {
			entries = append(entries, newRanked(i, req, nodes[i], chosen))
		}
	}
	slices.SortFunc(entries, func(a, b ranked) int {
		return cmp.Or(
			-compareBool(a.grouped, b.grouped),
			compareFree(policy, a.slack, b.slack),
			compareFree(policy, a.nodeFree, b.nodeFree),
			cmp.Compare(nodes[a.node].Name, nodes[b.node].Name),
		)
	})
	scores := make([]int64, len(nodes))
	for rank, e := range entries {
		if rank == 0 {
			scores[e.node] = MaxScore
			continue
		}
		scores[e.node] = (MaxScore - 1) - int64((MaxScore-1)*rank/len(entries))
	}
	return scores
}

// ranked is what Rank compares of one node.
type ranked struct {
	node     int
	grouped  bool
	slack    gpu.Units // left on the chosen devices after placing
	nodeFree gpu.Units
}

func newRanked(i int, req Request, node Node, chosen Assignment) ranked {
	r := ranked{node: i}
	for _, d := range node.Devices {
		r.nodeFree += d.Free()
		if slices.ContainsFunc(chosen.Shares, func(s Share) bool { return s.Device == d.UUID }) {
			units, _ := req.Share()
			r.slack += d.Free() - units
			r.grouped = r.grouped || req.inGroup(d)
		}
	}
	return r
}
