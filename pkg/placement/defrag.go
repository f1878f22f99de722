package placement

import (
	"cmp"
	"slices"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// Defrag is a request that is to get room, and what may be done for it.
type Defrag struct {
	Request  Request
	Fallback Policy // of the cluster, for pods that name none

	// May reports whether a pod may be evicted at all. In any case it stays when
	// it has a higher priority than the request, or its eviction would be beyond
	// a budget.
	May     func(Holding) bool
	Budgets []Budget

	// Suits reports whether a node takes a pod, as far as that is not about GPUs
	// or CPU. The pod without a UID is that of the request.
	Suits func(pod PodRef, node string) bool

	// Displace allows to evict pods of lower priority that find no room elsewhere.
	Displace bool

	Most int // evictions, at most
}

// Plan is how a request gets room.
type Plan struct {
	Node       string
	Assignment Assignment // of the request
	Moves      []Move
}

// Move is one eviction.
type Move struct {
	Pod      Holding
	From, To string // nodes; To is empty where there is no room for it
}

// Plan returns the fewest evictions with which the request fits a node, and all
// evicted pods fit others or, where Displace allows it, none. Of as many, those
// are taken that displace the fewest pods, then those that are the cheapest (see
// cheaper), then the first node. It reports false when Most are not enough.
//
// That an evicted pod finds room is worked out in turn, the largest first, each
// where the least stays free, and never on the GPUs of the request: they have to
// be kept from it until it is elsewhere. kube-scheduler may choose otherwise.
func (d Defrag) Plan(nodes []Node) (Plan, bool) {
	s := search{Defrag: d, nodes: nodes, roomy: make(map[string][]int)}
	for size := range d.Most + 1 {
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

func (p Plan) displaced() (n int) {
	for _, m := range p.Moves {
		if m.To == "" {
			n++
		}
	}
	return n
}

// search is the search for a plan.
type search struct {
	Defrag
	nodes []Node
	roomy map[string][]int // by what is asked for, the nodes that have room as they are
}

// candidate are pods without which the request fits their node.
type candidate struct {
	node    int
	victims []Holding
}

// candidates returns those of so many pods, the cheapest first.
func (s *search) candidates(size int) (out []candidate) {
	for i := range s.nodes {
		n := &s.nodes[i]
		if !s.Suits(PodRef{}, n.Name) {
			continue
		}
		pods := n.holdings(func(h Holding) bool {
			return !h.Terminating && h.Request.Priority <= s.Request.Priority && s.May(h)
		})
		if !Fit(s.Request, n.without(pods)).Fits() {
			continue
		}
		for _, devices := range n.sets(s.Request.GPUs()) {
			for _, victims := range s.clear(devices, pods, size) {
				out = append(out, candidate{node: i, victims: victims})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b candidate) int { return cheaper(a.victims, b.victims, s.Budgets) })
	return out
}

// sets returns the node with each set of so many of its devices.
func (n Node) sets(size int) (out []Node) {
	var grow func(set []Device, from int)
	grow = func(set []Device, from int) {
		if len(set) == size {
			some := n
			some.Devices, some.State = slices.Clone(set), nil
			out = append(out, some)
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
// all devices of the node. Those without whom it does not fit, whoever else
// leaves, are in each of them.
func (s *search) clear(n Node, pods []Holding, size int) (sets [][]Holding) {
	fits := func(gone []Holding) bool { return Fit(s.Request, n.without(gone)).Fits() }
	pods = n.holdings(func(h Holding) bool { return hasPod(pods, h) })
	if len(pods) < size || !fits(pods) {
		return nil
	}
	var must, others []Holding
	for _, h := range pods {
		if fits(except(pods, h)) {
			others = append(others, h)
		} else {
			must = append(must, h)
		}
	}
	slices.SortFunc(others, func(a, b Holding) int {
		return cmp.Or(cmp.Compare(a.Request.Key(), b.Request.Key()), moreImportant(b, a))
	})
	var grow func(gone []Holding, from int)
	grow = func(gone []Holding, from int) {
		if len(gone) == size {
			if fits(gone) && Violations(gone, s.Budgets) == 0 {
				sets = append(sets, gone)
			}
			return
		}
		for i := from; i < len(others); i++ {
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

// alike reports whether it is all one which of two pods is evicted. Pods that are
// protected by other budgets are not alike.
func (s *search) alike(a, b Holding) bool {
	return a.Request.Priority == b.Request.Priority && a.Request.Key() == b.Request.Key() &&
		!slices.ContainsFunc(s.Budgets, func(budget Budget) bool {
			return slices.Contains(budget.Pods, a.Pod.UID) != slices.Contains(budget.Pods, b.Pod.UID)
		})
}

// relocate finds places for a candidate's victims once the request has its own.
func (s *search) relocate(c candidate) (Plan, bool) {
	n := s.nodes[c.node].without(c.victims)
	chosen, verdict := Choose(s.Fallback, s.Request, n)
	if !verdict.Fits() || n.freeCPU() < s.Request.CPU {
		return Plan{}, false
	}
	plan := Plan{Node: n.Name, Assignment: chosen}
	changed := map[int]Node{c.node: n.with(Holding{Request: s.Request, Assignment: chosen}).closed(chosen.Devices())}
	victims := slices.Clone(c.victims)
	slices.SortFunc(victims, func(a, b Holding) int {
		return cmp.Or(cmp.Compare(b.Request.Units(), a.Request.Units()), moreImportant(a, b))
	})
	for _, h := range victims {
		move := Move{Pod: h, From: n.Name}
		if to, ok := s.roomFor(h, changed); ok {
			on, changedBefore := changed[to]
			if !changedBefore {
				on = s.nodes[to]
			}
			h.Assignment, _ = Choose(s.Fallback, h.Request, on)
			changed[to], move.To = on.with(h), on.Name
		} else if !s.Displace || h.Request.Priority >= s.Request.Priority {
			return Plan{}, false
		}
		plan.Moves = append(plan.Moves, move)
	}
	return plan, true
}

// closed returns the node with some devices that take no further pods.
func (n Node) closed(devices []gpu.UUID) Node {
	n.Devices, n.State = slices.Clone(n.Devices), nil
	for i := range n.Devices {
		if slices.Contains(devices, n.Devices[i].UUID) {
			n.Devices[i].Healthy = false
		}
	}
	return n
}

// roomFor returns the node that is the best for an evicted pod, when some nodes
// are not as they were.
func (s *search) roomFor(h Holding, changed map[int]Node) (at int, ok bool) {
	var best *ranked
	policy := Policies{GPU: s.Fallback}.node(h.Request)
	consider := func(i int, n *Node) {
		if n.freeCPU() < h.Request.CPU || !s.Suits(h.Pod, n.Name) {
			return
		}
		r := newRanked(s.Fallback, h.Request, n)
		if !r.fits {
			return
		}
		if order := 0; best != nil {
			if order = r.compare(best, policy); order > 0 || order == 0 && i > at {
				return
			}
		}
		best, at, ok = r, i, true
	}
	for _, i := range s.withRoom(h.Request) {
		if _, differs := changed[i]; !differs {
			consider(i, &s.nodes[i])
		}
	}
	for i, n := range changed {
		consider(i, &n)
	}
	return at, ok
}

// withRoom returns the nodes that have room for a request as they are.
func (s *search) withRoom(req Request) []int {
	key := req.Key()
	out, known := s.roomy[key]
	if !known {
		for i := range s.nodes {
			if Fit(req, s.nodes[i]).Fits() {
				out = append(out, i)
			}
		}
		s.roomy[key] = out
	}
	return out
}
