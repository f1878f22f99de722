package ranking

import (
	"cmp"
	"slices"
	"sync"

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
	if req.Policy == placement.Exclusive {
		req.Policy = ""
	}
	return cmp.Or(req.Policy, p.Node, p.GPU)
}

// Ranker orders nodes for requests. It keeps what it has found of a node until
// the node changes, and is safe for use by several goroutines. The zero value
// is ready.
type Ranker struct {
	mu    sync.Mutex
	kept  map[asked]map[string]*ranked // by request and node
	count int
	best  []*ranked // of the last ranking
}

// asked is what is asked for, and by which policies where the request names none.
type asked struct {
	key      placement.Key
	defaults Policies
}

// maxKept bounds what a Ranker keeps: for each request its nodes, those that are gone included, and
// what it lists. The last ranking may go beyond it.
const maxKept = 1 << 18

// Ranking is the order of the nodes on which a request fits.
type Ranking struct {
	Best []Scored // the best first; of equals the names decide

	// First is the best node, and Alone the one that the policy alone puts first, whatever
	// the request likes and takes from others. They are the same where that changes nothing.
	First, Alone Stake
}

// Scored is a node by its index, and its score from 1 to MaxScore.
type Scored struct {
	Index int
	Score int64
}

// Stake is what a request likes of a node, and takes from others there.
type Stake struct {
	Index int
	placement.Choice
	Cost
}

// Rank returns as many of the best nodes for a request.
//
// The best node gets MaxScore and the others share the rest by rank: eleven
// levels are too coarse to carry a measure. Nodes between which there is no
// difference get the same, and kube-scheduler's other scores decide.
//
// A node with the pod's group, a model that it prefers or GPUs nearer to one
// another goes before. Then Binpack prefers the node on whose chosen GPU the
// least is left free, what the pod takes from others at these prices (Cost) included, and
// among equals the fullest node; Spread the node whose chosen GPUs are emptiest, by the
// fullest of them, where GPUs are spread too, then the node with the largest
// part free, and then that with most free.
func (r *Ranker) Rank(most int, defaults Policies, req placement.Request, nodes []*placement.Node, prices *Prices) Ranking {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !defaults.node(req).Priced() {
		prices = nil
	}
	known := r.of(defaults, req, len(nodes))
	best := r.best[:0]
	var last, alone *ranked // last: so many are before it that it does not count
	fitting := 0
	for i, n := range nodes {
		e := known[n.Name]
		if e == nil || e.of == nil || e.of != n.State {
			if e == nil {
				r.count++
			}
			e = newRanked(defaults, req, n)
			known[n.Name] = e
		}
		if e.index = i; !e.fits {
			continue
		}
		if e.prices != prices {
			e.worth, e.prices = e.policy[0]+prices.cost(n, req, e.Devices).Sum(), prices
		}
		if fitting++; alone == nil || e.alone(alone) < 0 {
			alone = e
		}
		if last != nil && last.before(e) < 0 {
			continue
		}
		if best = append(best, e); len(best) == 2*most {
			best = first(best, most)
			last = best[most-1]
		}
	}
	r.best = best
	if fitting == 0 {
		return Ranking{}
	}
	best = first(best, most)
	if alone.compare(best[0]) == 0 {
		alone = best[0]
	}
	stake := func(e *ranked) Stake {
		return Stake{e.index, e.Choice, prices.cost(nodes[e.index], req, e.Devices)}
	}
	return Ranking{scores(best, fitting), stake(best[0]), stake(alone)}
}

// first orders some and returns as many of the best.
func first(some []*ranked, most int) []*ranked {
	slices.SortFunc(some, (*ranked).before)
	return some[:min(len(some), most)]
}

// scores gives scores to the best of the nodes that fit.
func scores(best []*ranked, fitting int) []Scored {
	out := make([]Scored, len(best))
	score := int64(MaxScore)
	for rank, e := range best {
		if rank > 0 && e.compare(best[rank-1]) != 0 {
			score = (MaxScore - 1) - int64((MaxScore-1)*rank/fitting)
		}
		out[rank] = Scored{Index: e.index, Score: score}
	}
	return out
}

// of returns what is kept for a request. All is forgotten when it is too much.
func (r *Ranker) of(defaults Policies, req placement.Request, nodes int) map[string]*ranked {
	key := asked{req.Key(), defaults}
	known, ok := r.kept[key]
	if ok && r.count <= maxKept {
		return known
	}
	listed := len(req.Containers.All()) + len(req.Models.Texts()) + len(req.UUIDs.Texts()) // the key keeps them in memory
	if r.count+nodes+listed > maxKept || r.kept == nil {
		r.kept, r.count = make(map[asked]map[string]*ranked), 0
	}
	r.count += listed
	known = make(map[string]*ranked, nodes)
	r.kept[key] = known
	return known
}

// ranked is what Rank compares of one node.
type ranked struct {
	placement.Choice
	index  int              // of the node
	of     *placement.State // of the node
	name   string
	fits   bool
	policy [4]float64 // by which the policy alone orders nodes, the least first
	worth  float64    // the first of these, with the cost
	prices *Prices    // of the cost
}

func newRanked(defaults Policies, req placement.Request, n *placement.Node) *ranked {
	r := &ranked{of: n.State, name: n.Name, fits: true}
	if !req.Empty() {
		r.Choice, r.fits = placement.NewChoice(defaults.GPU, req, *n)
	}
	units, _ := req.Share()
	choice := placement.NodeChoice{
		GPUs: cmp.Or(req.Policy, defaults.GPU), Share: 1, Free: float64(free(n)), Allocatable: float64(n.Allocatable()),
	}
	for _, i := range r.Devices {
		choice.Left += float64(n.Devices[i].Free() - units)
		choice.Share = min(choice.Share, n.Devices[i].FreeShare())
	}
	r.policy = defaults.node(req).NodeOrder(choice)
	r.worth = r.policy[0]
	return r
}

// compare orders nodes, the better one first.
func (a *ranked) compare(b *ranked) int {
	if a.Order != b.Order {
		return a.Order.Compare(b.Order)
	}
	if a.worth != b.worth {
		return cmp.Compare(a.worth, b.worth)
	}
	return slices.Compare(a.policy[1:], b.policy[1:])
}

func (a *ranked) before(b *ranked) int {
	if by := a.compare(b); by != 0 {
		return by
	}
	return cmp.Compare(a.name, b.name)
}

// alone orders nodes by the policy alone. Of equals the one comes first that is not the best,
// for something else has decided then.
func (a *ranked) alone(b *ranked) int {
	if by := slices.Compare(a.policy[:], b.policy[:]); by != 0 {
		return by
	}
	return cmp.Or(b.compare(a), cmp.Compare(a.name, b.name))
}
