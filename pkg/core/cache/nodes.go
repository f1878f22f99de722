package cache

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// nodes stores the cache's nodes by name, ghosts included. Its exported methods are for readers, never take
// Cache.mu, and return immutable results. Only Set, and the first call after a node was added or removed, take
// the field lock.
type nodes struct {
	known atomic.Pointer[map[string]*node] // the readers' map, immutable; nil: a node was added or removed since

	lock sync.Mutex // guards the rest. Writers also hold Cache.mu, so all code under Cache.mu can read without this lock
	all  map[string]*node
	made int // number of nodes ever added
}

// node returns the node of that name, and creates a ghost if there is none.
func (s *nodes) node(name string) *node {
	if n, ok := s.all[name]; ok {
		return n
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	n := &node{name: name}
	n.id.Store(-1)
	s.all[name] = n
	s.known.Store(nil)
	return n
}

// Node returns a copy of one node.
func (s *nodes) Node(name string) (placement.Node, bool) {
	if n := s.GetNode(name); n != nil {
		return *n, true
	}
	return placement.Node{}, false
}

// GetNode returns one node without a copy, or nil if it is unknown.
func (s *nodes) GetNode(name string) *placement.Node {
	if n, ok := s.readMap()[name]; ok {
		return n.state.Load()
	}
	return nil
}

// readMap returns the readers' map, and rebuilds it after a node was added or removed.
func (s *nodes) readMap() map[string]*node {
	if known := s.known.Load(); known != nil {
		return *known
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	known := maps.Collect(maps.All(s.all)) // not maps.Clone, which the race detector does not check
	s.known.Store(&known)
	return known
}

// Nodes returns all nodes, sorted by name.
func (s *nodes) Nodes() []placement.Node {
	known := s.readMap()
	out := make([]placement.Node, 0, len(known))
	for _, n := range known {
		if state := n.state.Load(); state != nil {
			out = append(out, *state)
		}
	}
	slices.SortFunc(out, func(a, b placement.Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
