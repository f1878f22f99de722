package decider

import (
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/decisions"
)

const (
	// minTried and maxTried bound how many of the best nodes other filters are asked about for one
	// pod: a sixteenth of all. If they refuse all of these, kube-scheduler evaluates all nodes, and
	// the pod pays for both.
	minTried, maxTried = 32, 256
	// leastTried is the bound after several walks in a row that found no node: each of them halves
	// it. Every sixteenth walk tries as many as the first, so that other pods get their hints again.
	leastTried, fullWalk = 16, 16
	// maxEqual is how many equal nodes kube-scheduler's scores choose from.
	maxEqual = 16
)

// Best returns the best of all nodes that other filters let the pod pass; empty: none of those that
// it has tried, and kube-scheduler has to evaluate all nodes. Where several are equally good, choose
// chooses.
func (d *Decider) Best(c *Cycle, passes func(node string) bool, choose func(nodes []string) string) string {
	_, nodes := d.Cache.Changes()
	most := min(max(minTried, nodes/16), maxTried)
	limit := most
	if n := d.fruitless.Load(); n%fullWalk != 0 {
		limit = max(most>>n, leastTried)
	}
	var equal []string
	tried, of := 0, 0
	fit := d.index.Walk(d.Cache, d.question(c), func(n *placement.Node, rank int) bool {
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
	d.Fits(c, nodes, fit, nil)
	order := d.index.Rank(d.Cache, d.question(c), decisions.MaxNodes, nil)
	ranked := decisions.Ranked(order, fit)
	ranked.Node = best
	d.Record(c.Pod, ranked)
	return best
}

// Equal reports whether all nodes that are being scored are equal here, so that Rank is not needed.
func (c *Cycle) Equal() bool { return c.equal }
