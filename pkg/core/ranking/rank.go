package ranking

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// MaxScore is the highest score that Rank returns: MaxExtenderPriority of k8s.io/kube-scheduler.
const MaxScore = 10

// Policies are the cluster's policies for pods that name none.
type Policies struct {
	GPU  placement.Policy
	Node placement.Policy // empty: the policy for GPUs
}

// node returns the policy that ranks nodes for a request. A pod's own policy applies to nodes too,
// except Exclusive, which applies to GPUs only.
func (p Policies) node(req placement.Request) placement.Policy {
	if req.Policy == placement.Exclusive {
		req.Policy = ""
	}
	return cmp.Or(req.Policy, p.Node, p.GPU)
}

// Ranking is the result of Rank.
type Ranking struct {
	Best []Scored // the best first; equal nodes by name

	// First is the best node. ByPolicy is the node that the policy would put first without the request's
	// preferences and costs. First and ByPolicy are the same if preferences and costs make no
	// difference.
	First, ByPolicy Candidate
}

// Scored is a node and its score from 1 to MaxScore.
type Scored struct {
	Node  *placement.Node
	Score int64
}

// Candidate is a node with the chosen GPUs, the request's preferences, and the cost to future pods.
type Candidate struct {
	Node *placement.Node
	placement.Choice
	Cost
}

// Rank returns at most the given number of best nodes for a request.
//
// The best nodes get MaxScore; the others get 1 to MaxScore-1 by rank, because eleven scores are too few
// to express amounts. Equal nodes get the same score, and kube-scheduler's other scores decide.
//
// A node with a pod of the request's group, a preferred model or a better interconnect comes first.
// Then Binpack prefers the node with the least memory left on the chosen GPU, plus the cost to future
// pods at the given prices, and then the fullest node. If Spread chose the GPUs too, it prefers the node
// whose fullest chosen GPU has the largest free fraction. Then Spread prefers the node with the largest
// free fraction, and then the node with the most free memory.
func Rank(limit int, defaults Policies, req placement.Request, nodes []*placement.Node, prices *Prices) Ranking {
	by := criteria{defaults, req, defaults.pay(req, prices)}
	var fitting []*ranked
	for _, n := range nodes {
		if r := by.rank(n); r != nil {
			fitting = append(fitting, r)
		}
	}
	slices.SortFunc(fitting, (*ranked).compareWithNames)
	return by.ranking(fitting, len(fitting), limit)
}

// criteria determine the rank of a node: the policies, the request, and the prices that apply to it.
type criteria struct {
	defaults Policies
	req      placement.Request
	prices   *Prices
}

// pay returns the prices that apply to a request, or nil if no prices apply.
func (p Policies) pay(req placement.Request, prices *Prices) *Prices {
	if p.node(req).Priced() {
		return prices
	}
	return nil
}

// ranking builds the result from sorted nodes. Parameter fitting is the number of nodes on which the
// request fits.
func (by criteria) ranking(sorted []*ranked, fitting, limit int) Ranking {
	if len(sorted) == 0 {
		return Ranking{}
	}
	alone := slices.MinFunc(sorted, (*ranked).compareByPolicy)
	if alone.compare(sorted[0]) == 0 {
		alone = sorted[0]
	}
	out := Ranking{First: by.candidate(sorted[0]), ByPolicy: by.candidate(alone)}
	score := int64(MaxScore)
	for rank, r := range sorted[:min(len(sorted), limit)] {
		if rank > 0 && r.compare(sorted[rank-1]) != 0 {
			score = (MaxScore - 1) - int64((MaxScore-1)*rank/fitting)
		}
		out.Best = append(out.Best, Scored{Node: r.node, Score: score})
	}
	return out
}

func (by criteria) candidate(r *ranked) Candidate {
	return Candidate{r.node, placement.Choice{Devices: r.devices, Order: r.liked()}, by.prices.cost(r.node, by.req, r.devices)}
}

// ranked holds the keys for comparing nodes. An Index has one per node and request, so it must be small.
type ranked struct {
	node    *placement.Node
	devices []int            // GPUs that the request would get
	order   *placement.Order // nil means unliked, as on most nodes
	policy  [4]float32       // lower values are preferred: see placement.Policy.NodeOrder
	worth   float64          // first value of policy plus the cost
}

// unliked is the order of one GPU for a request without preferences.
var unliked placement.Order

// single backs the device lists with one GPU, to avoid an allocation for each.
var single = func() (out [64]int) {
	for i := range out {
		out[i] = i
	}
	return out
}()

// rank returns the keys of a node, or nil if the request does not fit it.
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
		if order := choice.Order; order != unliked {
			r.order = &order
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

// price recomputes worth at the current prices.
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

func (r *ranked) compareWithNames(o *ranked) int {
	if by := r.compare(o); by != 0 {
		return by
	}
	return cmp.Compare(r.node.Name, o.node.Name)
}

// compareByPolicy orders nodes by the policy only. Of nodes that the policy ranks equal, it puts the worse first,
// so that ByPolicy differs from First if preferences or costs decided.
func (r *ranked) compareByPolicy(o *ranked) int {
	if by := slices.Compare(r.policy[:], o.policy[:]); by != 0 {
		return by
	}
	return cmp.Or(o.compare(r), cmp.Compare(r.node.Name, o.node.Name))
}
