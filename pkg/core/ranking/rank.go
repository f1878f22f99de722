package ranking

import (
	"cmp"
	"math"
	"slices"

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

// Ranking is the order of the nodes on which a request fits.
type Ranking struct {
	Best []Scored // the best first; of equals the names decide

	// First is the best node, and Alone the one that the policy alone puts first, whatever
	// the request likes and takes from others. They are the same where that changes nothing.
	First, Alone Stake
}

// Scored is a node and its score from 1 to MaxScore.
type Scored struct {
	Node  *placement.Node
	Score int64
}

// Stake is what a request likes of a node, and takes from others there.
type Stake struct {
	Node *placement.Node
	placement.Choice
	Cost
}

// Rank returns the best nodes for a request, at most so many.
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
func Rank(most int, defaults Policies, req placement.Request, nodes []*placement.Node, prices *Prices) Ranking {
	by := criteria{defaults, req, defaults.pay(req, prices)}
	var fitting []*ranked
	for _, n := range nodes {
		if r := by.rank(n); r != nil {
			fitting = append(fitting, r)
		}
	}
	slices.SortFunc(fitting, (*ranked).before)
	return by.ranking(fitting, len(fitting), most)
}

// criteria are what a node is ranked by: the request, the policies, and prices where these count.
type criteria struct {
	defaults Policies
	req      placement.Request
	prices   *Prices
}

// pay returns the prices that count for a request; nil: none do.
func (p Policies) pay(req placement.Request, prices *Prices) *Prices {
	if p.node(req).Priced() {
		return prices
	}
	return nil
}

// ranking returns the order of nodes that are sorted already, of so many that fit.
func (by criteria) ranking(sorted []*ranked, fitting, most int) Ranking {
	if len(sorted) == 0 {
		return Ranking{}
	}
	alone := slices.MinFunc(sorted, (*ranked).alone)
	if alone.compare(sorted[0]) == 0 {
		alone = sorted[0]
	}
	out := Ranking{First: by.stake(sorted[0]), Alone: by.stake(alone)}
	score := int64(MaxScore)
	for rank, r := range sorted[:min(len(sorted), most)] {
		if rank > 0 && r.compare(sorted[rank-1]) != 0 {
			score = (MaxScore - 1) - int64((MaxScore-1)*rank/fitting)
		}
		out.Best = append(out.Best, Scored{Node: r.node, Score: score})
	}
	return out
}

func (by criteria) stake(r *ranked) Stake {
	return Stake{r.node, placement.Choice{Devices: r.devices, Order: r.liked()}, by.prices.cost(r.node, by.req, r.devices)}
}

// ranked is what nodes are compared by. An Index has one for each node and request, so it is small.
type ranked struct {
	node    *placement.Node
	devices []int            // the GPUs that the request would get
	order   *placement.Order // nil means unliked, which most nodes are
	policy  [4]float32       // the policy prefers nodes with lower values: see placement.Policy.NodeOrder
	worth   float64          // the first value of policy and the cost together
}

// unliked is how a request without likings likes one GPU.
var unliked = placement.Order{ModelCost: math.MinInt}

// single backs the devices of choices of one GPU, so that these need no slice each.
var single = func() (out [64]int) {
	for i := range out {
		out[i] = i
	}
	return out
}()

// rank returns how a node ranks; nil: the request does not fit on it.
func (by criteria) rank(n *placement.Node) *ranked {
	r := &ranked{node: n}
	if !by.req.Empty() {
		choice, fits := placement.NewChoice(by.defaults.GPU, by.req, *n)
		if !fits {
			return nil
		}
		if r.devices = choice.Devices; len(r.devices) == 1 && r.devices[0] < len(single) {
			r.devices = single[r.devices[0]:][:1:1]
		}
		if choice.Order != unliked {
			r.order = &choice.Order
		}
	}
	units, _ := by.req.Share()
	choice := placement.NodeChoice{
		GPUs: cmp.Or(by.req.Policy, by.defaults.GPU), Share: 1, Free: float64(free(n)), Allocatable: float64(n.Allocatable()),
	}
	for _, i := range r.devices {
		choice.Left += float64(n.Devices[i].Free() - units)
		choice.Share = min(choice.Share, n.Devices[i].FreeShare())
	}
	for i, value := range by.defaults.node(by.req).NodeOrder(choice) {
		r.policy[i] = float32(value)
	}
	by.price(r)
	return r
}

// price works out what a node is worth at the prices.
func (by criteria) price(r *ranked) {
	r.worth = float64(r.policy[0]) + by.prices.cost(r.node, by.req, r.devices).Sum()
}

func (r *ranked) liked() placement.Order {
	if r.order == nil {
		return unliked
	}
	return *r.order
}

// compare orders nodes, the better one first.
func (r *ranked) compare(o *ranked) int {
	if r.order != nil || o.order != nil {
		if by := r.liked().Compare(o.liked()); by != 0 {
			return by
		}
	}
	if r.worth != o.worth {
		return cmp.Compare(r.worth, o.worth)
	}
	return slices.Compare(r.policy[1:], o.policy[1:])
}

func (r *ranked) before(o *ranked) int {
	if by := r.compare(o); by != 0 {
		return by
	}
	return cmp.Compare(r.node.Name, o.node.Name)
}

// alone orders nodes by the policy alone. Of equals the one comes first that is not the best,
// for something else has decided then.
func (r *ranked) alone(o *ranked) int {
	if by := slices.Compare(r.policy[:], o.policy[:]); by != 0 {
		return by
	}
	return cmp.Or(o.compare(r), cmp.Compare(r.node.Name, o.node.Name))
}
