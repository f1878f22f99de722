package cache

import (
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

// priced are prices and when they were made.
type priced struct {
	*ranking.Prices
	changes uint64 // that the cache had seen
	nodes   int
	learned uint64 // pods
}

// Learn records what a pod asks for that has been heard of for the first time,
// whether it is on a node or waits.
func (c *Cache) Learn(req placement.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mix.Learn(req)
}

// Prices returns what the last call of Reprice has found, without any wait; nil
// before the first.
func (c *Cache) Prices() *ranking.Prices {
	if last := c.prices.Load(); last != nil {
		return last.Prices
	}
	return nil
}

// Reprice finds out what that is worth to the pods to come that the nodes have
// room for, by what was learned of them, if since it last did about one in stale nodes has
// changed, or one in stale has been added to the pods that are learned of. It looks at all
// nodes, so no pod should have to wait for it.
func (c *Cache) Reprice() {
	const stale = 4
	last := c.prices.Load()
	c.mu.Lock()
	if last != nil && c.changes-last.changes <= uint64(last.nodes/stale) && c.mix.Learned-last.learned <= last.learned/stale {
		c.mu.Unlock()
		return
	}
	mix, changes := c.mix.Clone(), c.changes
	c.mu.Unlock()
	nodes := c.Nodes()
	c.prices.Store(&priced{Prices: ranking.NewPrices(mix, nodes), changes: changes, nodes: len(nodes), learned: mix.Learned})
}
