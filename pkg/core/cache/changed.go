package cache

import (
	"iter"
	"maps"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// maxRecent is how many changes of nodes the cache remembers.
const maxRecent = 4096

// Since returns the nodes that have changed after as many changes as an earlier call has returned,
// some of them twice, and how many changes there have been by now. It reports false where the cache
// does not remember so many.
func (c *Cache) Since(changes uint64) (names []string, now uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes-changes > maxRecent {
		return nil, c.changes, false
	}
	names = make([]string, 0, c.changes-changes)
	for i := changes + 1; i <= c.changes; i++ {
		names = append(names, c.recent[i%maxRecent])
	}
	return names, c.changes, true
}

// ChangedSince is Since for those who do without such memory: they get all nodes then, as they do
// for 0.
func (c *Cache) ChangedSince(changes uint64) (names []string, now uint64) {
	names, now, ok := c.Since(changes)
	if !ok || changes == 0 {
		return slices.Collect(maps.Keys(c.readable())), now
	}
	slices.Sort(names)
	return slices.Compact(names), now
}

// All yields all nodes, in no order.
func (s *nodes) All(yield func(*placement.Node) bool) {
	for _, n := range s.readable() {
		if state := n.state.Load(); state != nil && !yield(state) {
			return
		}
	}
}

// Changes returns how many changes of nodes there have been, and how many nodes there are.
func (c *Cache) Changes() (changes uint64, nodes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes, c.offered
}

// NodeSet is a set of nodes that a cache knew at one time. It takes a bit for each node
// that has been added so far.
type NodeSet struct {
	bits []uint64
	made int // nodes, when it was made
}

// Set returns the set of the nodes of these names.
func (s *nodes) Set(names iter.Seq[string]) NodeSet {
	s.lock.Lock()
	set := NodeSet{made: s.made, bits: make([]uint64, (s.made+63)/64)}
	s.lock.Unlock()
	known := s.readable()
	for name := range names {
		if n, ok := known[name]; ok {
			if id := int(n.id.Load()); 0 <= id && id < set.made {
				set.bits[id/64] |= 1 << (id % 64)
			}
		}
	}
	return set
}

// Has reports whether a node is in the set, or has come since the set was made.
func (s *nodes) Has(set NodeSet, name string) bool {
	n, ok := s.readable()[name]
	if !ok {
		return false
	}
	id := int(n.id.Load())
	return id >= set.made || id >= 0 && set.bits[id/64]&(1<<(id%64)) != 0
}
