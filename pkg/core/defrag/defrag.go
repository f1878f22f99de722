package defrag

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/preemption"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

// Goal is a request that is to get GPUs, and what may be done for it.
type Goal struct {
	Request  placement.Request
	Fallback placement.Policy // of the cluster, for pods that name none

	// May reports whether a pod may be evicted at all. In any case it is kept when
	// it has a higher priority than the request, or its eviction would be beyond
	// a budget.
	May     func(placement.Holding) bool
	Budgets []preemption.Budget

	// Suits reports whether a node takes a pod, as far as that is not about GPUs
	// or CPU. The pod without a UID is that of the request.
	Suits func(pod placement.PodRef, node string) bool

	// Displace allows to evict pods of lower priority that fit nowhere else.
	Displace bool

	// Empty says that the GPUs are to be free: no pod comes to them, so that the node's
	// sum is all one.
	Empty bool

	Most int // evictions, at most
}

// inSum reports whether kube-scheduler would ask about a node for the request.
func (g Goal) inSum(n placement.Node) bool { return g.Empty || n.InSum(g.Request) }

// Plan is how a request gets GPUs.
type Plan struct {
	Node       string
	Assignment placement.Assignment // of the request
	Moves      []Move
}

// Move is one eviction.
type Move struct {
	Pod      placement.Holding
	From, To string // nodes; To is empty where it fits on none
}

func (p Plan) displaced() (n int) {
	for _, m := range p.Moves {
		if m.To == "" {
			n++
		}
	}
	return n
}

// Plan returns the fewest evictions with which the request fits a node, and all
// evicted pods fit others or, where Displace allows it, none. Of as many, those
// are taken that displace the fewest pods, then those that are the cheapest (see
// preemption.Cheaper), then the first node. It reports false when Most are not
// enough.
//
// That an evicted pod fits elsewhere is worked out in turn, the largest first, each
// where the least is left free, and never on the GPUs of the request: they have to
// be kept from it until it is elsewhere. kube-scheduler may choose otherwise.
func (g Goal) Plan(nodes []placement.Node) (Plan, bool) {
	s := newSearch(g, nodes)
	for size := range g.Most + 1 {
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

// Hopeless reports whether no number of evictions is enough: the request would fit no GPUs
// even if all pods left that may and fit elsewhere, or less is free elsewhere than
// those hold that have to go there.
func (g Goal) Hopeless(nodes []placement.Node) bool {
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

// Overdrawn returns the first node on whose GPUs the request would fit without all pods that
// may be evicted, though kube-scheduler would not send it there then: as it would be.
func (g Goal) Overdrawn(nodes []placement.Node) (placement.Node, bool) {
	s := newSearch(g, nodes)
	for _, n := range nodes {
		if !s.Suits(placement.PodRef{}, n.Name) {
			continue
		}
		if n = n.Without(s.evictable(n)); placement.Fit(g.Request, n).Fits() && !g.inSum(n) {
			return n, true
		}
	}
	return placement.Node{}, false
}

// roomBeside reports whether a request fits on another node than one, as they are.
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

// leaving returns how much of a node's GPUs has to be left at least, for the request to
// get all of them, by pods that have to fit elsewhere, and what those of the pods hold
// in all that may be displaced.
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

// displaces reports whether a pod may be evicted that fits nowhere else.
func (s *search) displaces(h placement.Holding) bool {
	return s.Displace && h.Request.Priority < s.Request.Priority
}

// free returns what is free in all on GPUs that take new pods.
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

// search is the search for a plan.
type search struct {
	Goal
	nodes []placement.Node
	roomy map[placement.Key][]bool // for each request, whether it fits the nodes in their present state

	guarded map[string]bool // UIDs of pods whose budget allows no eviction at all
}

func newSearch(g Goal, nodes []placement.Node) *search {
	return &search{Goal: g, nodes: nodes, roomy: make(map[placement.Key][]bool), guarded: preemption.Guarded(g.Budgets)}
}

// candidate are pods without which the request fits their node.
type candidate struct {
	node    int
	victims []placement.Holding
}

// candidates returns those of so many pods, the cheapest first.
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

// clearable returns the pods of a node that may be evicted, and whether the request fits
// it without all of them.
func (s *search) clearable(n placement.Node) (pods []placement.Holding, ok bool) {
	if !s.Suits(placement.PodRef{}, n.Name) {
		return nil, false
	}
	pods = s.evictable(n)
	left := n.Without(pods)
	return pods, placement.Fit(s.Request, left).Fits() && s.inSum(left)
}

func (s *search) evictable(n placement.Node) []placement.Holding {
	return slices.DeleteFunc(n.Holdings(), func(h placement.Holding) bool {
		return h.Terminating || h.Request.Priority > s.Request.Priority || s.guarded[h.Pod.UID] || !s.May(h)
	})
}

// sets returns a node with each set of so many of its devices.
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

// clear returns the sets of so many of the pods without which the request fits
// some devices of the node, all of them, and its sum. Those without whom it does not
// fit, no matter who else leaves, are in each of them.
func (s *search) clear(n, some placement.Node, pods []placement.Holding, size int) (sets [][]placement.Holding) {
	overdrawn := s.overdrawn(n)
	fits := func(gone []placement.Holding) bool {
		return placement.Fit(s.Request, some.Without(gone)).Fits() && (!overdrawn || s.inSum(n.Without(gone)))
	}
	if !overdrawn { // what fits the devices fits the sum
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

// sortAlike puts pods together that ask for the same on the same GPUs, the least important first.
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

// overdrawn reports whether the node's sum may be too small for the request where devices are not.
func (s *search) overdrawn(n placement.Node) bool {
	return !s.inSum(n) && slices.ContainsFunc(n.Devices, func(d placement.Device) bool {
		units, cores := d.Excess()
		return units > 0 || cores > 0
	})
}

// alike reports whether it is all one which of two pods is evicted. Pods on other GPUs, or
// protected by other budgets, are not alike.
func (s *search) alike(a, b placement.Holding) bool {
	return a.Request.Priority == b.Request.Priority && a.Request.Key() == b.Request.Key() && slices.Equal(a.Assignment.Devices(), b.Assignment.Devices()) &&
		!slices.ContainsFunc(s.Budgets, func(budget preemption.Budget) bool {
			return slices.Contains(budget.Pods, a.Pod.UID) != slices.Contains(budget.Pods, b.Pod.UID)
		})
}

// relocate finds places for a candidate's victims once the request has its own.
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

// closed returns a node with some devices that take no further pods.
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

// roomFor returns the node that is the best for an evicted pod, and the first of
// equals; nil, if it fits on none. Nodes are as they would be: but for the one that
// is left, none has more free than it has now.
func (s *search) roomFor(h placement.Holding, nodes []placement.Node, left int) *placement.Node {
	roomy := s.withRoom(h.Request)
	var open []*placement.Node
	for i := range nodes {
		if n := &nodes[i]; (roomy[i] || i == left) && n.FreeCPU() >= h.Request.CPU && n.InSum(h.Request) && s.Suits(h.Pod, n.Name) {
			open = append(open, n)
		}
	}
	return ranking.Rank(1, ranking.Policies{GPU: s.Fallback}, h.Request, open, nil).First.Node
}

// withRoom returns on which nodes a request fits as they are.
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
