package decider

import (
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/history"
)

const (
	// minTried and maxTried bound the number of nodes that Best tries for one pod. Best tries a sixteenth of
	// all nodes. If the other filters reject all tried nodes, the caller evaluates the nodes as without Best, and
	// the time of Best is lost.
	minTried, maxTried = 32, 256
	// A walk over the nodes is fruitless if it ends at the number of nodes to try, and the other filters have
	// rejected all of them. Each fruitless walk in a row halves the number of nodes to try, down to
	// leastTried. After every fullWalk fruitless walks, Best tries the full number once, because other pods
	// may pass the filters.
	leastTried, fullWalk = 16, 16
	// maxEqual is the maximum number of equal nodes from which kube-scheduler's scores choose.
	maxEqual = 16
)

// Best returns the best node that passes the other filters. If names is not nil, Best considers only these
// nodes. It returns an empty name if none of the tried nodes passes: the caller must then evaluate the nodes
// itself. If several nodes are equally good, choose picks one of them.
func (d *Decider) Best(c *Cycle, names []string, passes func(node string) bool, choose func(nodes []string) string) string {
	_, nodes := d.Cache.Changes()
	most := min(max(minTried, nodes/16), maxTried)
	limit := most
	if n := d.fruitless.Load(); n%fullWalk != 0 {
		limit = max(most>>n, leastTried)
	}
	var among map[string]bool
	asked := nodes
	if names != nil {
		among, asked = setOf(names), len(names)
	}
	var equal []string
	tried, of := 0, 0
	fit := d.index.Walk(d.Cache, d.question(c.Question), among, func(n *placement.Node, rank int) bool {
		if len(equal) > 0 && rank != of {
			return false
		}
		if tried++; passes(n.Name) {
			equal, of = append(equal, n.Name), rank
		}
		return len(equal) < maxEqual && tried < limit
	})
	if len(equal) == 0 {
		if tried == limit {
			d.fruitless.Add(1)
		}
		return ""
	}
	d.fruitless.Store(0)
	best := equal[0]
	if len(equal) > 1 {
		c.equal = true
		best = choose(equal)
		c.equal = false
	}
	d.Fits(c, asked, fit, nil)
	order := d.index.Rank(d.Cache, d.question(c.Question), history.MaxNodes, among)
	ranked := history.Ranked(order, fit)
	ranked.Node = best
	d.Record(c.Pod, ranked)
	return best
}

// Equal reports whether the nodes that are being scored have equal ranks, so that Rank is not needed.
func (c *Cycle) Equal() bool { return c.equal }
