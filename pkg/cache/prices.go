package cache

import (
	"github.com/gpumem/gpumem/pkg/placement"
)

// priced are prices and when they were made.
type priced struct {
	*placement.Prices
	changes int // that the cache had seen
	nodes   int
}

// Learn records what a pod asks for that has been heard of for the first time,
// whether it is on a node or waits.
func (c *Cache) Learn(req placement.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mix.Learn(req)
}

// Prices returns what the nodes have room for is worth to the pods to come, by
// what was learned of them. They are made anew when about one in stale nodes has
// changed.
func (c *Cache) Prices() *placement.Prices {
	const stale = 4
	last := c.prices.Load()
	c.mu.Lock()
	if last != nil && c.changes-last.changes <= last.nodes/stale {
		c.mu.Unlock()
		return last.Prices
	}
	mix, changes := c.mix.Clone(), c.changes
	c.mu.Unlock()
	nodes := c.Nodes()
	now := &priced{Prices: placement.NewPrices(mix, nodes), changes: changes, nodes: len(nodes)}
	c.prices.Store(now)
	return now.Prices
}
