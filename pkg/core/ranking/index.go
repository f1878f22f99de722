package ranking

import (
	"iter"
	"slices"
	"sync"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Source provides an Index with nodes and prices.
type Source interface {
	// Since returns the nodes that have changed after so many changes, and how many changes there
	// have been by now. It reports false where it does not remember so many.
	Since(changes uint64) (names []string, now uint64, ok bool)
	// Look returns a node as it is now; nil: there is none.
	Look(name string) *placement.Node
	// All yields all nodes.
	All(yield func(*placement.Node) bool)
	Prices() *Prices
}

// Index maintains, for each request that pods make, the nodes of one Source on which it fits, in
// the order of Rank. It updates an order by the nodes that have changed since the last question
// about that request. It is safe for use by several goroutines, and the zero value is ready.
type Index struct {
	mu      sync.Mutex
	classes map[class]*sequence
	size    int    // of all classes
	asked   uint64 // questions so far
}

// class is a request, whatever pod makes it, and the policies where the request names none.
type class struct {
	key      placement.Key
	defaults Policies
}

// maxIndexed bounds the size of an Index: the nodes in its orders, and the words of the requests
// that they are for. The order in use may exceed it.
const maxIndexed = 1 << 18

// Question is one pod's question about the best nodes.
type Question struct {
	Request  placement.Request
	Defaults Policies
	// View returns a node without the memory that is reserved for pods that are nominated to it or
	// expected there. The amount depends on the pod.
	View func(*placement.Node) *placement.Node
}

// Walk visits the nodes on which a request fits, the best first, until visit returns false. Nodes
// that are equal have the same rank. Walk returns on how many nodes the request fits. Visit must
// not call the Index.
func (x *Index) Walk(source Source, q Question, visit func(n *placement.Node, rank int) bool) (fit int) {
	_, walk, fit := x.walk(source, q)
	defer x.mu.Unlock()
	var last *ranked
	rank := 0
	for r := range walk {
		if last != nil && r.compare(last) != 0 {
			rank++
		}
		if last = r; !visit(r.node, rank) {
			break
		}
	}
	return fit
}

// Rank returns the best nodes, at most so many, of those on which a request fits or, where among is
// not nil, of some of these. Ranking.Alone is one of them.
func (x *Index) Rank(source Source, q Question, most int, among map[string]bool) Ranking {
	by, walk, fit := x.walk(source, q)
	defer x.mu.Unlock()
	if among != nil {
		fit = len(among)
	}
	var sorted []*ranked
	for r := range walk {
		if among == nil || among[r.node.Name] {
			sorted = append(sorted, r)
		}
		if len(sorted) == min(most, fit) {
			break
		}
	}
	if len(sorted) < most {
		fit = len(sorted) // it does not fit on all of them
	}
	return by.ranking(sorted, fit, most)
}

// walk returns the order for a question as of now, with x.mu locked.
func (x *Index) walk(source Source, q Question) (by criteria, walk iter.Seq[*ranked], fit int) {
	x.mu.Lock()
	o := x.sequence(q)
	x.size -= len(o.sorted)
	o.catchUp(source, q.Defaults.pay(q.Request, source.Prices()))
	x.size += len(o.sorted)
	others := o.others(source, q)
	return o.criteria, merged(o.sorted, others), len(o.sorted) + len(others)
}

// others returns the nodes apart on which the request fits, the best first.
func (o *sequence) others(source Source, q Question) (others []*ranked) {
	for name := range o.apart {
		if n := source.Look(name); n != nil {
			if r := o.rank(q.View(n)); r != nil {
				others = append(others, r)
			}
		}
	}
	slices.SortFunc(others, (*ranked).before)
	return others
}

// sequence returns the order for a request, which may be empty yet.
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

// dropOldest removes the order of the request that was not asked about for longest.
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
	asked uint64 // the number of its last question

	seen   uint64             // changes of nodes
	nodes  int                // when it was last built, those on which the request does not fit included
	sorted []*ranked          // the best first, without the nodes apart
	by     map[string]*ranked // the same by name; nil: none was made yet
	apart  map[string]bool    // nodes to which pods are to come
}

// isApart reports whether pods are to come to a node. Its rank depends on the pod that asks.
func isApart(n *placement.Node) bool { return len(n.Nominated)+len(n.Expected) > 0 }

// words returns how much the request adds to the size of an Index: it may list many names.
func (o *sequence) words() int {
	return 1 + len(o.req.Containers.All()) + len(o.req.Models.Texts()) + len(o.req.UUIDs.Texts())
}

// catchUp applies what has changed since the last question.
func (o *sequence) catchUp(source Source, prices *Prices) {
	names, now, ok := source.Since(o.seen)
	if o.by == nil || !ok || len(names) > o.nodes {
		o.prices = prices
		o.build(source)
	} else {
		for _, name := range names {
			o.update(name, source.Look(name))
		}
		if o.prices != prices {
			o.prices = prices
			for _, r := range o.sorted {
				o.price(r)
			}
			slices.SortFunc(o.sorted, (*ranked).before)
		}
	}
	o.seen = now
}

// build makes the order anew.
func (o *sequence) build(source Source) {
	o.by, o.sorted, o.apart, o.nodes = make(map[string]*ranked), nil, make(map[string]bool), 0
	source.All(func(n *placement.Node) bool {
		o.nodes++
		if isApart(n) {
			o.apart[n.Name] = true
		} else if r := o.rank(n); r != nil {
			o.by[n.Name], o.sorted = r, append(o.sorted, r)
		}
		return true
	})
	slices.SortFunc(o.sorted, (*ranked).before)
}

// update moves one node to where it belongs by now; nil: it is gone.
func (o *sequence) update(name string, n *placement.Node) {
	was := o.by[name]
	if was != nil && was.node == n {
		return // it has changed more than once
	}
	delete(o.apart, name)
	var is *ranked
	switch {
	case n == nil:
	case isApart(n):
		o.apart[name] = true
	default:
		is = o.rank(n)
	}
	at := func(r *ranked) int {
		i, _ := slices.BinarySearchFunc(o.sorted, r, (*ranked).before)
		return i
	}
	switch {
	case was != nil && is != nil: // most changes move a node by a few places: no other node moves
		from, to := at(was), at(is)
		if from < to {
			to--
			copy(o.sorted[from:to], o.sorted[from+1:])
		} else {
			copy(o.sorted[to+1:from+1], o.sorted[to:])
		}
		o.sorted[to], o.by[name] = is, is
	case was != nil:
		i := at(was)
		o.sorted = slices.Delete(o.sorted, i, i+1)
		delete(o.by, name)
	case is != nil:
		o.sorted, o.by[name] = slices.Insert(o.sorted, at(is), is), is
	}
}

// merged yields the nodes of two orders in order.
func merged(a, b []*ranked) iter.Seq[*ranked] {
	return func(yield func(*ranked) bool) {
		for _, r := range a {
			for len(b) > 0 && b[0].before(r) < 0 {
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
