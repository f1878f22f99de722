package placement

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// Choose picks the GPUs of a node for a request, by the request's policy or
// else by fallback. The verdict says why when the assignment is none.
//
// A device that already holds a pod of the same group comes before all others,
// then the model that the pod prefers. Of several GPUs, those that are nearest
// to one another are taken. Binpack takes the devices on which the least stays
// free (best fit), Spread those with the most free. Ties fall to the lowest
// index. As a fallback, Exclusive is no more than Binpack: whom a pod keeps off
// must be in the pod.
func Choose(fallback Policy, req Request, node Node) (Assignment, Verdict) {
	chosen, reason := choose(fallback, req, node)
	units, cores := req.Share()
	var a Assignment
	for _, d := range chosen {
		a.Shares = append(a.Shares, Share{Device: d.UUID, Units: units, Cores: cores})
	}
	return a, Verdict{Reason: reason, Request: req, Node: node}
}

// choose returns the devices for a request, by index.
func choose(fallback Policy, req Request, node Node) ([]Device, Reason) {
	fitting, reason := candidates(req, node)
	if reason != Fits {
		return nil, reason
	}
	liked := func(a, b Device) int {
		return cmp.Or(
			-compareBool(req.inGroup(a), req.inGroup(b)),
			cmp.Compare(req.Preference.cost(a.Speed), req.Preference.cost(b.Speed)),
		)
	}
	slices.SortFunc(fitting, func(a, b Device) int {
		return cmp.Or(
			liked(a, b),
			compareFree(cmp.Or(req.Policy, fallback), a.Free(), b.Free()),
			cmp.Compare(a.Index, b.Index),
		)
	})
	want := req.GPUs()
	// Those that are liked better than the last of them are in any case taken,
	// and those that are liked less in none.
	last := fitting[want-1]
	first := slices.IndexFunc(fitting, func(d Device) bool { return liked(d, last) == 0 })
	fitting = slices.DeleteFunc(fitting, func(d Device) bool { return liked(d, last) > 0 })
	chosen := nearest(node, fitting, first, want)
	slices.SortFunc(chosen, func(a, b Device) int { return cmp.Compare(a.Index, b.Index) })
	return chosen, Fits
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

// Policies are those of the cluster, for pods that name none.
type Policies struct {
	GPU  Policy
	Node Policy // empty: as for GPUs
}

// node returns the policy by which nodes are chosen for a request. What a pod
// asks for itself is of nodes too, but for Exclusive, which is of GPUs alone.
func (p Policies) node(req Request) Policy {
	if req.Policy == Binpack || req.Policy == Spread {
		return req.Policy
	}
	return cmp.Or(p.Node, p.GPU)
}

// Rank scores nodes for a request, from 0 to MaxScore, in their order.
//
// The best node gets MaxScore and the others share the rest by rank: eleven
// levels are too coarse to carry a measure. Nodes between which there is no
// difference get the same, and kube-scheduler's other scores decide.
//
// A node with the pod's group, a model that it prefers or GPUs nearer to one
// another goes before. Then Binpack prefers the node on whose chosen GPU the
// least stays free, and among equals the fullest node; Spread the emptiest
// node, and among equals that with the emptiest GPU. A node on which the
// request does not fit gets 0.
func Rank(defaults Policies, req Request, nodes []Node) []int64 {
	entries := make([]ranked, 0, len(nodes))
	for i, n := range nodes {
		if chosen, reason := choose(defaults.GPU, req, n); reason == Fits {
			entries = append(entries, newRanked(i, req, n, chosen))
		}
	}
	compare := func(a, b ranked) int { return a.compare(b, defaults.node(req)) }
	slices.SortFunc(entries, compare)
	scores := make([]int64, len(nodes))
	for rank, e := range entries {
		switch {
		case compare(e, entries[0]) == 0:
			scores[e.node] = MaxScore
		case compare(e, entries[rank-1]) == 0:
			scores[e.node] = scores[entries[rank-1].node]
		default:
			scores[e.node] = (MaxScore - 1) - int64((MaxScore-1)*rank/len(entries))
		}
	}
	return scores
}

// ranked is what Rank compares of one node.
type ranked struct {
	node     int
	grouped  bool
	cost     int // of the GPU that is preferred least
	distance distance
	slack    gpu.Units // left on the chosen devices after placing
	nodeFree gpu.Units
}

func newRanked(i int, req Request, node Node, chosen []Device) ranked {
	units, _ := req.Share()
	r := ranked{node: i, cost: math.MinInt, distance: node.span(chosen)}
	for _, d := range chosen {
		r.slack += d.Free() - units
		r.cost = max(r.cost, req.Preference.cost(d.Speed))
		r.grouped = r.grouped || req.inGroup(d)
	}
	for _, d := range node.Devices {
		r.nodeFree += d.Free()
	}
	return r
}

// compare orders nodes, the better one first. Lanes do not count: those of
// different models are not alike.
func (a ranked) compare(b ranked, p Policy) int {
	likes := cmp.Or(
		-compareBool(a.grouped, b.grouped),
		cmp.Compare(a.cost, b.cost),
		cmp.Compare(a.distance.unlinked, b.distance.unlinked),
		cmp.Compare(a.distance.crossing, b.distance.crossing),
	)
	slack, free := compareFree(p, a.slack, b.slack), compareFree(p, a.nodeFree, b.nodeFree)
	if p == Spread {
		return cmp.Or(likes, free, slack)
	}
	return cmp.Or(likes, slack, free)
}
