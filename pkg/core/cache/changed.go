package cache

import (
	"iter"
	"maps"
	"slices"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// maxRecent is the number of recent changes of nodes that the cache records.
const maxRecent = 4096

// Since returns the nodes that changed after the given number of changes, with possible duplicates, and
// the current number of changes. It returns false if the record does not go back that far.
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

// ChangedSince is Since without duplicates. It returns all nodes if changes is 0 or the record does not go
// back that far.
func (c *Cache) ChangedSince(changes uint64) (names []string, now uint64) {
	names, now, ok := c.Since(changes)
	if !ok || changes == 0 {
		return slices.Collect(maps.Keys(c.readMap())), now
	}
	slices.Sort(names)
	return slices.Compact(names), now
}

// All yields all nodes in no particular order.
func (s *nodes) All(yield func(*placement.Node) bool) {
	for _, n := range s.readMap() {
		if state := n.state.Load(); state != nil && !yield(state) {
			return
		}
	}
}

// Changes returns the number of changes of nodes so far, and the number of nodes.
func (c *Cache) Changes() (changes uint64, nodes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes, c.offered
}

// NodeSet is a set of nodes that existed at one time. It uses one bit for each node that was ever added.
type NodeSet struct {
	bits []uint64
	made int // number of nodes ever added before the set was made
}

// Set returns the set of the named nodes. It ignores unknown names.
func (s *nodes) Set(names iter.Seq[string]) NodeSet {
	s.lock.Lock()
	set := NodeSet{made: s.made, bits: make([]uint64, (s.made+63)/64)}
	s.lock.Unlock()
	known := s.readMap()
	for name := range names {
		if n, ok := known[name]; ok {
			if id := int(n.id.Load()); 0 <= id && id < set.made {
				set.bits[id/64] |= 1 << (id % 64)
			}
		}
	}
	return set
}

// Has reports whether a node is in the set, or was added after the set was made.
func (s *nodes) Has(set NodeSet, name string) bool {
	n, ok := s.readMap()[name]
	if !ok {
		return false
	}
	id := int(n.id.Load())
	return id >= set.made || id >= 0 && set.bits[id/64]&(1<<(id%64)) != 0
}
