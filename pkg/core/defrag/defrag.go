package defrag

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/preemption"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

// Goal is a request that needs GPUs, and the evictions that are permitted for it.
type Goal struct {
	Request  placement.Request
	Fallback placement.Policy // cluster's policy, for pods that name none

	// IsEvictable reports whether a pod may be evicted. A plan never evicts pods of higher priority than the
	// request, and never exceeds a budget.
	IsEvictable func(placement.Holding) bool
	Budgets     []preemption.Budget

	// NodeAccepts reports whether a node accepts a pod, apart from GPUs and CPU. A pod without a UID stands
	// for the pod of the request.
	NodeAccepts func(pod placement.PodRef, node string) bool

	// Displace permits evictions of pods with lower priority that fit no other node.
	Displace bool

	// Empty is set if the GPUs are for no particular pod. Then inSum skips kube-scheduler's check of the
	// node's sum, because there is no pod to check.
	Empty bool

	MaxEvictions int // maximum number of evictions
}

// inSum reports whether the request passes kube-scheduler's check of the node's sums.
func (g Goal) inSum(n placement.Node) bool { return g.Empty || n.InSum(g.Request) }

// Plan is the result of a search: the node and the GPUs for a request, and the evictions.
type Plan struct {
	Node       string
	Assignment placement.Assignment // of the request
	Moves      []Move
}

// Move is one eviction.
type Move struct {
	Pod      placement.Holding
	From, To string // nodes; To is empty if the pod fits no node
}

func (p Plan) displaced() (n int) {
	for _, m := range p.Moves {
		if m.To == "" {
			n++
		}
	}
	return n
}

// Plan returns the fewest evictions that let the request fit a node and all evicted pods fit other nodes.
// With Displace, some evicted pods may fit none. Among plans of equal size, it prefers the one that
// displaces the fewest pods, then the cheapest (see preemption.Cheaper), then the first node. It returns
// false if MaxEvictions evictions are not enough.
//
// Plan places the evicted pods one at a time, the largest first, each on the node that ranking.Rank
// prefers, and never on the GPUs of the request. The caller must cordon these GPUs until the request has
// them. kube-scheduler may choose other places for the evicted pods.
func (g Goal) Plan(nodes []placement.Node) (Plan, bool) {
	s := newSearch(g, nodes)
	for size := range g.MaxEvictions + 1 {
		var best Plan
		found := false
		for _, c := range s.candidates(size) {
			plan, ok := s.relocate(c)
			if ok && (!found || plan.displaced() < best.displaced()) {
				best, found = plan, true
			}
			if found && best.displaced() == 0 {
				break
			}
		}
		if found {
			return best, true
		}
	}
	return Plan{}, false
}

// IsHopeless reports whether no number of evictions is enough. Call a pod movable if it may be evicted,
// and fits other GPUs or may be displaced. The request is hopeless if it would not fit even without all
// movable pods, or if the pods that must leave need more memory than is free on other GPUs.
func (g Goal) IsHopeless(nodes []placement.Node) bool {
	s := newSearch(g, nodes)
	total := free(nodes...)
	for i, n := range nodes {
		pods, ok := s.clearable(n)
		if !ok {
			continue
		}
		for _, some := range sets(n, g.Request.GPUs()) {
			rest := closed(n.Without(pods), uuids(some))
			movable := slices.DeleteFunc(slices.Clone(pods), func(h placement.Holding) bool {
				return !s.displaces(h) && !placement.Fit(h.Request, rest).Fits() && !s.roomBeside(h.Request, i)
			})
			leaving, displaced := s.leaving(some, movable)
			if placement.Fit(g.Request, some.Without(movable)).Fits() && leaving <= total-free(some)+displaced && g.inSum(n.Without(movable)) {
				return false
			}
		}
	}
	return true
}

// Overdrawn removes from each node all pods that may be evicted. It returns the first node on which the
// request then fits the GPUs but fails kube-scheduler's check of the node's sums.
func (g Goal) Overdrawn(nodes []placement.Node) (placement.Node, bool) {
	s := newSearch(g, nodes)
	for _, n := range nodes {
		if !s.NodeAccepts(placement.PodRef{}, n.Name) {
			continue
		}
		if n = n.Without(s.evictable(n)); placement.Fit(g.Request, n).Fits() && !g.inSum(n) {
			return n, true
		}
	}
	return placement.Node{}, false
}

// roomBeside reports whether a request fits any node except one, in their present state.
func (s *search) roomBeside(req placement.Request, node int) bool {
	for i, roomy := range s.withRoom(req) {
		if roomy && i != node {
			return true
		}
	}
	return false
}

func uuids(n placement.Node) (out []gpu.UUID) {
	for _, d := range n.Devices {
		out = append(out, d.UUID)
	}
	return out
}

// leaving returns a lower bound for the memory that evicted pods need on other GPUs if the request gets
// all GPUs of n, and the total memory of the pods that may be displaced.
func (s *search) leaving(n placement.Node, pods []placement.Holding) (leaving, displaced gpu.Units) {
	share, _ := s.Request.Share()
	for _, d := range n.Devices {
		if s.Request.Policy == placement.Exclusive {
			leaving += d.Requested
		} else {
			leaving += max(0, share-d.Free())
		}
	}
	for _, h := range pods {
		if s.displaces(h) {
			displaced += h.Request.Units()
		}
	}
	return leaving, displaced
}

// displaces reports whether a pod may be evicted even if it fits no other node.
func (s *search) displaces(h placement.Holding) bool {
	return s.Displace && h.Request.Priority < s.Request.Priority
}

// free returns the total free memory of GPUs that take new pods.
func free(nodes ...placement.Node) (sum gpu.Units) {
	for _, n := range nodes {
		for _, d := range n.Devices {
			if d.Status.TakesPods() {
				sum += d.Free()
			}
		}
	}
	return sum
}

// search is the state of one search for a plan.
type search struct {
	Goal
	nodes []placement.Node
	roomy map[placement.Key][]bool // by request: whether the request fits each node in the node's present state

	guarded map[string]bool // UIDs of pods whose budget allows no eviction
}

func newSearch(g Goal, nodes []placement.Node) *search {
	return &search{Goal: g, nodes: nodes, roomy: make(map[placement.Key][]bool), guarded: preemption.ProtectedPods(g.Budgets)}
}

// candidate is a set of victims on one node. After their eviction the request fits the node.
type candidate struct {
	node    int
	victims []placement.Holding
}

// candidates returns the candidates with the given number of pods, the cheapest first.
func (s *search) candidates(size int) (out []candidate) {
	for i, n := range s.nodes {
		pods, ok := s.clearable(n)
		if !ok {
			continue
		}
		for _, some := range sets(n, s.Request.GPUs()) {
			for _, victims := range s.clear(n, some, pods, size) {
				out = append(out, candidate{node: i, victims: victims})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b candidate) int { return preemption.Cheaper(a.victims, b.victims, s.Budgets) })
	return out
}

// clearable returns the pods of a node that may be evicted, and whether the request fits the node
// without them.
func (s *search) clearable(n placement.Node) (pods []placement.Holding, ok bool) {
	if !s.NodeAccepts(placement.PodRef{}, n.Name) {
		return nil, false
	}
	pods = s.evictable(n)
	left := n.Without(pods)
	return pods, placement.Fit(s.Request, left).Fits() && s.inSum(left)
}

func (s *search) evictable(n placement.Node) []placement.Holding {
	return slices.DeleteFunc(n.Holdings(), func(h placement.Holding) bool {
		return h.Terminating || h.Request.Priority > s.Request.Priority || s.guarded[h.Pod.UID] || !s.IsEvictable(h)
	})
}

// sets returns the sets of the given number of devices, each as a copy of the node with only these devices.
func sets(n placement.Node, size int) (out []placement.Node) {
	var grow func(set []placement.Device, from int)
	grow = func(set []placement.Device, from int) {
		if len(set) == size {
			out = append(out, n.Only(slices.Clone(set)...))
			return
		}
		for i := from; i < len(n.Devices); i++ {
			grow(append(set, n.Devices[i]), i+1)
		}
	}
	grow(nil, 0)
	return out
}

// clear returns the sets of victims with the given size. Parameter some is a copy of n with only as many
// devices as the request needs. After the eviction of a set, the request fits the devices of this copy
// and the sums of n. Every set contains the pods that must leave in any case.
func (s *search) clear(n, some placement.Node, pods []placement.Holding, size int) (sets [][]placement.Holding) {
	overdrawn := s.overdrawn(n)
	fits := func(gone []placement.Holding) bool {
		return placement.Fit(s.Request, some.Without(gone)).Fits() && (!overdrawn || s.inSum(n.Without(gone)))
	}
	if !overdrawn { // pods on other devices can stay, because a request that fits the devices also fits the sum
		pods = slices.DeleteFunc(some.Holdings(), func(h placement.Holding) bool { return !placement.HasPod(pods, h) })
	}
	if len(pods) < size || !fits(pods) {
		return nil
	}
	var must, others []placement.Holding
	for i, h := range pods {
		if fits(slices.Delete(slices.Clone(pods), i, i+1)) {
			others = append(others, h)
		} else {
			must = append(must, h)
		}
	}
	sortAlike(others)
	var grow func(gone []placement.Holding, from int)
	grow = func(gone []placement.Holding, from int) {
		if len(gone) == size {
			if fits(gone) && preemption.Violations(gone, s.Budgets) == 0 {
				sets = append(sets, gone)
			}
			return
		}
		for i := from; i < len(others) && fits(slices.Concat(gone, others[i:])); i++ {
			if i == from || !s.alike(others[i-1], others[i]) {
				grow(append(slices.Clone(gone), others[i]), i+1)
			}
		}
	}
	if len(must) <= size {
		grow(must, 0)
	}
	return sets
}

// sortAlike groups pods with equal requests on the same GPUs, the least important first.
func sortAlike(pods []placement.Holding) {
	slices.SortFunc(pods, func(a, b placement.Holding) int { return placement.MoreImportant(b, a) })
	turn := make(map[placement.Key]int)
	for _, h := range pods {
		if _, ok := turn[h.Request.Key()]; !ok {
			turn[h.Request.Key()] = len(turn)
		}
	}
	slices.SortStableFunc(pods, func(a, b placement.Holding) int {
		return cmp.Or(cmp.Compare(turn[a.Request.Key()], turn[b.Request.Key()]), slices.Compare(a.Assignment.Devices(), b.Assignment.Devices()))
	})
}

// overdrawn reports whether the request may fail the check of the node's sum although it fits devices.
func (s *search) overdrawn(n placement.Node) bool {
	return !s.inSum(n) && slices.ContainsFunc(n.Devices, func(d placement.Device) bool {
		units, cores := d.Excess()
		return units > 0 || cores > 0
	})
}

// alike reports whether two pods are equivalent as victims. Pods on different GPUs or with different
// budgets are not alike.
func (s *search) alike(a, b placement.Holding) bool {
	return a.Request.Priority == b.Request.Priority && a.Request.Key() == b.Request.Key() && slices.Equal(a.Assignment.Devices(), b.Assignment.Devices()) &&
		!slices.ContainsFunc(s.Budgets, func(budget preemption.Budget) bool {
			return slices.Contains(budget.Pods, a.Pod.UID) != slices.Contains(budget.Pods, b.Pod.UID)
		})
}

// relocate finds places for a candidate's victims after the request has got its GPUs.
func (s *search) relocate(c candidate) (Plan, bool) {
	n := s.nodes[c.node].Without(c.victims)
	chosen, verdict := placement.Choose(s.Fallback, s.Request, n)
	if !verdict.Fits() || n.FreeCPU() < s.Request.CPU {
		return Plan{}, false
	}
	plan := Plan{Node: n.Name, Assignment: chosen}
	now := slices.Clone(s.nodes)
	now[c.node] = closed(n.With(placement.Holding{Request: s.Request, Assignment: chosen}), chosen.Devices())
	victims := slices.Clone(c.victims)
	slices.SortFunc(victims, func(a, b placement.Holding) int {
		return cmp.Or(cmp.Compare(b.Request.Units(), a.Request.Units()), placement.MoreImportant(a, b))
	})
	for _, h := range victims {
		move := Move{Pod: h, From: n.Name}
		if to := s.roomFor(h, now, c.node); to != nil {
			h.Assignment, _ = placement.Choose(s.Fallback, h.Request, *to)
			*to, move.To = to.With(h), to.Name
		} else if !s.displaces(h) {
			return Plan{}, false
		}
		plan.Moves = append(plan.Moves, move)
	}
	return plan, true
}

// closed returns the node with the given devices cordoned.
func closed(n placement.Node, devices []gpu.UUID) placement.Node {
	n.Devices = slices.Clone(n.Devices)
	for i, d := range n.Devices {
		if status := d.Status; slices.Contains(devices, d.UUID) {
			status.Cordoned = true
			n.Devices[i] = d.With(status)
		}
	}
	return n
}

// roomFor returns the best node for an evicted pod, or nil if the pod fits no node. Parameter nodes has
// the nodes' hypothetical state, and left is the index of the pod's old node. Only the old node can
// have more free memory than at present, so roomFor skips all other nodes without room at present
// (withRoom).
func (s *search) roomFor(h placement.Holding, nodes []placement.Node, left int) *placement.Node {
	roomy := s.withRoom(h.Request)
	var open []*placement.Node
	for i := range nodes {
		if n := &nodes[i]; (roomy[i] || i == left) && n.FreeCPU() >= h.Request.CPU && n.InSum(h.Request) && s.NodeAccepts(h.Pod, n.Name) {
			open = append(open, n)
		}
	}
	return ranking.Rank(1, ranking.Policies{GPU: s.Fallback}, h.Request, open, nil).First.Node
}

// withRoom returns for each node whether a request fits its present state.
func (s *search) withRoom(req placement.Request) []bool {
	key := req.Key()
	roomy, known := s.roomy[key]
	if !known {
		for _, n := range s.nodes {
			roomy = append(roomy, placement.Fit(req, n).Fits())
		}
		s.roomy[key] = roomy
	}
	return roomy
}
