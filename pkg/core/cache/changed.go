package cache

import "iter"

// ChangedSince returns the nodes that have changed after as many changes as an
// earlier call has returned, and how many there have been by now; 0: all nodes.
func (c *Cache) ChangedSince(changes uint64) (names []string, now uint64) {
	if now, _ = c.Changes(); now == changes {
		return nil, now
	}
	for name, n := range c.readable() {
		if n.changed.Load() > changes {
			names = append(names, name)
		}
	}
	return names, now
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
