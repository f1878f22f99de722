package ranking

import (
	"iter"
	"slices"
	"sync"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Source provides an Index with nodes and prices.
type Source interface {
	// Since returns the nodes that changed after the given number of changes, and the current number of
	// changes. It returns false if the source's record does not go back that far.
	Since(changes uint64) (names []string, now uint64, ok bool)
	// GetNode returns the current state of a node, or nil if there is none.
	GetNode(name string) *placement.Node
	// All yields all nodes.
	All(yield func(*placement.Node) bool)
	Prices() *Prices
}

// Index maintains, for each distinct request, the nodes of one Source on which it fits, in the order
// of Rank. It updates an order with the nodes that changed since that order was last used. It is safe
// for concurrent use, and the zero value is ready.
type Index struct {
	mu      sync.Mutex
	classes map[class]*sequence
	size    int    // total size of all classes
	asked   uint64 // number of questions
}

// class is the key of an order: a request and the policies that apply if the request names none.
type class struct {
	key      placement.Key
	defaults Policies
}

// maxIndexed limits the size of an Index: the nodes in its orders plus the names in their requests. The
// order in use may exceed it.
const maxIndexed = 1 << 18

// Question asks for the best nodes for one pod.
type Question struct {
	Request  placement.Request
	Defaults Policies
	// View returns a node minus the memory reserved for nominated and expected pods. The Index calls it
	// only for nodes with nominated pods, because their reservations depend on the asking pod. On the
	// other nodes, it charges all expected pods, so the asking pod must not be expected on any node.
	View func(*placement.Node) *placement.Node
}

// Walk visits the nodes on which a request fits, the best first, until visit returns false. If among is
// not nil, Walk considers only the nodes in among. Equal nodes have the same rank. Walk returns the number
// of nodes on which the request fits. The function visit must not call the Index.
func (x *Index) Walk(source Source, q Question, among map[string]bool, visit func(n *placement.Node, rank int) bool) (fit int) {
	_, walk, fit := x.walk(source, q, among)
	defer x.mu.Unlock()
	var last *ranked
	rank := 0
	for r := range walk {
		if among != nil && !among[r.node.Name] {
			continue
		}
		if last != nil && r.compare(last) != 0 {
			rank++
		}
		if last = r; !visit(r.node, rank) {
			break
		}
	}
	return fit
}

// Rank returns at most the given number of best nodes. If among is not nil, Rank considers only the
// nodes in among. Ranking.ByPolicy is one of the returned nodes.
func (x *Index) Rank(source Source, q Question, limit int, among map[string]bool) Ranking {
	by, walk, fit := x.walk(source, q, among)
	defer x.mu.Unlock()
	var sorted []*ranked
	for r := range walk {
		if among == nil || among[r.node.Name] {
			sorted = append(sorted, r)
		}
		if len(sorted) == min(limit, fit) {
			break
		}
	}
	return by.ranking(sorted, fit, limit)
}

// walk returns the up-to-date order for a question, and the number of nodes in it. If among is not nil, this
// number includes only nodes in among. walk returns with x.mu locked.
func (x *Index) walk(source Source, q Question, among map[string]bool) (by criteria, walk iter.Seq[*ranked], fit int) {
	x.mu.Lock()
	o := x.sequence(q)
	x.size -= len(o.sorted)
	o.catchUp(source, q.Defaults.pay(q.Request, source.Prices()))
	x.size += len(o.sorted)
	others := o.rankNominated(source, q)
	fit = len(o.sorted) + len(others)
	if among != nil {
		fit = 0
		for name := range among {
			if o.by[name] != nil {
				fit++
			}
		}
		for _, r := range others {
			if among[r.node.Name] {
				fit++
			}
		}
	}
	return o.criteria, merged(o.sorted, others), fit
}

// rankNominated ranks the nodes with nominated pods on which the request fits, the best first.
func (o *sequence) rankNominated(source Source, q Question) (others []*ranked) {
	for name := range o.apart {
		if n := source.GetNode(name); n != nil {
			if r := o.rank(q.View(n)); r != nil {
				others = append(others, r)
			}
		}
	}
	slices.SortFunc(others, (*ranked).compareWithNames)
	return others
}

// sequence returns the order for a request. A new order is empty.
func (x *Index) sequence(q Question) *sequence {
	key := class{q.Request.Key(), q.Defaults}
	o := x.classes[key]
	if o == nil {
		for x.size > maxIndexed && len(x.classes) > 0 {
			x.dropOldest()
		}
		o = &sequence{criteria: criteria{defaults: q.Defaults, req: q.Request}}
		if x.classes == nil {
			x.classes = make(map[class]*sequence)
		}
		x.classes[key] = o
		x.size += o.words()
	}
	x.asked++
	o.asked = x.asked
	return o
}

// dropOldest removes the least recently used order.
func (x *Index) dropOldest() {
	var oldest *sequence
	var key class
	for k, o := range x.classes {
		if oldest == nil || o.asked < oldest.asked {
			oldest, key = o, k
		}
	}
	x.size -= len(oldest.sorted) + oldest.words()
	delete(x.classes, key)
}

// sequence is the order of nodes for one request.
type sequence struct {
	criteria
	asked uint64 // number of the last question that used the order

	seen   uint64             // changes of the Source that the order includes
	nodes  int                // number of nodes at the last build, including those on which the request does not fit
	sorted []*ranked          // the best first, without the nodes in apart
	by     map[string]*ranked // by name; nil before the first build
	apart  map[string]bool    // nodes with nominated pods
}

// isApart reports whether a node has nominated pods. Its rank then depends on the asking pod.
func isApart(n *placement.Node) bool { return len(n.Nominated) > 0 }

// soon returns the node as if its expected pods were bound.
func soon(n *placement.Node) *placement.Node {
	if len(n.Expected) == 0 {
		return n
	}
	bound := n.WithExpected(placement.PodRef{})
	return &bound
}

// words returns the number of names in the request, plus one, for maxIndexed.
func (o *sequence) words() int {
	return 1 + len(o.req.Containers.All()) + len(o.req.Models.Texts()) + len(o.req.UUIDs.Texts())
}

// catchUp applies the changes since the last question.
func (o *sequence) catchUp(source Source, prices *Prices) {
	names, now, ok := source.Since(o.seen)
	if o.by == nil || !ok || len(names) > o.nodes {
		o.prices = prices
		o.build(source)
	} else {
		for _, name := range names {
			o.update(name, source.GetNode(name))
		}
		if o.prices != prices {
			o.prices = prices
			for _, r := range o.sorted {
				o.price(r)
			}
			slices.SortFunc(o.sorted, (*ranked).compareWithNames)
		}
	}
	o.seen = now
}

// build ranks all nodes.
func (o *sequence) build(source Source) {
	o.by, o.sorted, o.apart, o.nodes = make(map[string]*ranked), nil, make(map[string]bool), 0
	source.All(func(n *placement.Node) bool {
		o.nodes++
		if isApart(n) {
			o.apart[n.Name] = true
		} else if r := o.rank(soon(n)); r != nil {
			o.by[n.Name], o.sorted = r, append(o.sorted, r)
		}
		return true
	})
	slices.SortFunc(o.sorted, (*ranked).compareWithNames)
}

// update moves one node to its new place in the order. If n is nil, update removes the node.
func (o *sequence) update(name string, n *placement.Node) {
	was := o.by[name]
	if was != nil && was.node == n {
		return // listed twice in the changes
	}
	at := func(r *ranked) int {
		i, _ := slices.BinarySearchFunc(o.sorted, r, (*ranked).compareWithNames)
		return i
	}
	if was != nil {
		i := at(was)
		o.sorted = slices.Delete(o.sorted, i, i+1)
	}
	delete(o.by, name)
	delete(o.apart, name)
	switch {
	case n == nil:
	case isApart(n):
		o.apart[name] = true
	default:
		if is := o.rank(soon(n)); is != nil {
			o.sorted, o.by[name] = slices.Insert(o.sorted, at(is), is), is
		}
	}
}

// merged yields the nodes of two sorted lists in order.
func merged(a, b []*ranked) iter.Seq[*ranked] {
	return func(yield func(*ranked) bool) {
		for _, r := range a {
			for len(b) > 0 && b[0].compareWithNames(r) < 0 {
				if !yield(b[0]) {
					return
				}
				b = b[1:]
			}
			if !yield(r) {
				return
			}
		}
		for _, r := range b {
			if !yield(r) {
				return
			}
		}
	}
}
