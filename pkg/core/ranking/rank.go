package ranking

import (
	"cmp"
	"slices"
	"sync"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// MaxScore is the highest score that Rank gives, k8s.io/kube-scheduler's
// MaxExtenderPriority.
const MaxScore = 10

// Policies are those of the cluster, for pods that name none.
type Policies struct {
	GPU  placement.Policy
	Node placement.Policy // empty: as for GPUs
}

// node returns the policy by which nodes are chosen for a request. What a pod
// asks for itself is of nodes too, but for Exclusive, which is of GPUs alone.
func (p Policies) node(req placement.Request) placement.Policy {
	cluster := cmp.Or(p.Node, p.GPU)
	if req.Policy == placement.Exclusive {
		return cluster
	}
	return cmp.Or(req.Policy, cluster)
}

// Ranker scores nodes for requests. It keeps what it has found of a node until
// the node changes, and is safe for use by several goroutines. The zero value
// is ready.
type Ranker struct {
	mu    sync.Mutex
	kept  map[asked]map[string]*ranked // by request and node
	count int
}

// asked is what is asked for, and by which policy of GPUs where the request names none.
type asked struct {
	key      placement.Key
	fallback placement.Policy
}

// maxKept bounds what a Ranker keeps: for each request its nodes, and what it lists.
const maxKept = 1 << 18

// Rank scores nodes for a request, from 0 to MaxScore, in their order.
//
// The best node gets MaxScore and the others share the rest by rank: eleven
// levels are too coarse to carry a measure. Nodes between which there is no
// difference get the same, and kube-scheduler's other scores decide.
//
// A node with the pod's group, a model that it prefers or GPUs nearer to one
// another goes before. Then Binpack prefers the node on whose chosen GPU the
// least stays free, what the pod takes from others at these prices (Cost) included, and
// among equals the fullest node; Spread the node whose chosen GPUs are emptiest, by the
// fullest of them, where GPUs are spread too, then the node of which the largest part is
// free, and then that with most free. A node on which the request does not fit gets 0.
func (r *Ranker) Rank(defaults Policies, req placement.Request, nodes []*placement.Node, prices *Prices) []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	fitting, compare := r.look(defaults, req, nodes, prices)
	slices.SortFunc(fitting, compare)
	return score(len(nodes), fitting, compare)
}

// Scored is one of the nodes that Best was given, and the score that Rank gives it.
type Scored struct {
	Index int
	Score int64
}

// Best returns as many of the best nodes on which the request fits, the best first. Of
// those that Rank finds equal, the names decide.
func (r *Ranker) Best(most int, defaults Policies, req placement.Request, nodes []*placement.Node, prices *Prices) []Scored {
	r.mu.Lock()
	defer r.mu.Unlock()
	fitting, compare := r.look(defaults, req, nodes, prices)
	inOrder := func(a, b int) int { return cmp.Or(compare(a, b), cmp.Compare(nodes[a].Name, nodes[b].Name)) }
	var best []int
	for _, i := range fitting {
		if len(best) == most && inOrder(best[most-1], i) < 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, i, inOrder)
		best = slices.Insert(best[:min(len(best), most-1)], at, i)
	}
	out := make([]Scored, len(best))
	for rank, i := range best {
		out[rank] = Scored{Index: i, Score: MaxScore}
		switch {
		case compare(i, best[0]) == 0:
		case compare(i, best[rank-1]) == 0:
			out[rank].Score = out[rank-1].Score
		default:
			out[rank].Score = scoreOf(rank, len(fitting))
		}
	}
	return out
}

// look returns the nodes on which a request fits, by index, and what orders them.
func (r *Ranker) look(defaults Policies, req placement.Request, nodes []*placement.Node, prices *Prices) (fitting []int, compare func(a, b int) int) {
	policy := defaults.node(req)
	if !policy.Packs() {
		prices = nil
	}
	known := r.of(defaults, req, len(nodes))
	entries := make([]*ranked, len(nodes))
	fitting = make([]int, 0, len(nodes))
	for i, n := range nodes {
		e := known[n.Name]
		if e == nil || e.of == nil || e.of != n.State {
			e = newRanked(defaults.GPU, req, n)
			known[n.Name] = e
		}
		if !e.fits {
			continue
		}
		if prices != nil && e.prices != prices {
			e.cost, e.prices = prices.cost(n, req, e.chosen.Devices), prices
			e.total = float64(e.slack) + e.cost.Sum()
		}
		entries[i] = e
		fitting = append(fitting, i)
	}
	return fitting, func(a, b int) int { return entries[a].compare(entries[b], policy) }
}

// score gives the levels to nodes in order, the best first.
func score(nodes int, order []int, compare func(a, b int) int) []int64 {
	scores := make([]int64, nodes)
	for rank, i := range order {
		switch {
		case compare(i, order[0]) == 0:
			scores[i] = MaxScore
		case compare(i, order[rank-1]) == 0:
			scores[i] = scores[order[rank-1]]
		default:
			scores[i] = scoreOf(rank, len(order))
		}
	}
	return scores
}

// scoreOf is the level of a node that is not among the best.
func scoreOf(rank, of int) int64 { return (MaxScore - 1) - int64((MaxScore-1)*rank/of) }

// of returns what is kept for a request. All is forgotten when it is too much.
func (r *Ranker) of(defaults Policies, req placement.Request, nodes int) map[string]*ranked {
	key := asked{req.Key(), defaults.GPU}
	known, ok := r.kept[key]
	if !ok {
		weight := nodes + req.Listed()
		if r.count += weight; r.count > maxKept || r.kept == nil {
			r.kept, r.count = make(map[asked]map[string]*ranked), weight
		}
		known = make(map[string]*ranked, nodes)
		r.kept[key] = known
	}
	return known
}

// ranked is what Rank compares of one node.
type ranked struct {
	of *placement.State // of the node

	fits     bool
	chosen   placement.Choice
	slack    gpu.Units // left on the chosen devices after placing
	nodeFree gpu.Units

	share     float64 // of the fullest chosen device that is free before placing, where GPUs are spread
	nodeShare float64 // of the node that is free

	prices *Prices
	cost   Cost    // at these prices
	total  float64 // with the slack
}

func newRanked(fallback placement.Policy, req placement.Request, n *placement.Node) *ranked {
	r := &ranked{of: n.State, fits: true, nodeFree: free(n)}
	r.nodeShare = float64(r.nodeFree) / float64(max(1, n.Allocatable()))
	if req.Empty() {
		return r
	}
	r.chosen, r.fits = placement.NewChoice(fallback, req, *n)
	if cmp.Or(req.Policy, fallback).Spreads() {
		r.share = 1
	}
	units, _ := req.Share()
	for _, i := range r.chosen.Devices {
		r.slack += n.Devices[i].Free() - units
		r.share = min(r.share, n.Devices[i].FreeShare())
	}
	r.total = float64(r.slack)
	return r
}

// compare orders nodes, the better one first.
func (a *ranked) compare(b *ranked, p placement.Policy) int {
	likes := a.chosen.Compare(b.chosen)
	switch {
	case p.Spreads():
		return cmp.Or(likes,
			cmp.Compare(b.share, a.share), cmp.Compare(b.nodeShare, a.nodeShare),
			cmp.Compare(b.nodeFree, a.nodeFree), cmp.Compare(b.slack, a.slack))
	case p.Packs():
		return cmp.Or(likes, cmp.Compare(a.total, b.total), cmp.Compare(a.nodeFree, b.nodeFree))
	default:
		return likes
	}
}
