package cache

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// nodes are those of the cache by name, ghosts included. Its exported methods are for readers: they
// take no lock, but for the first after a node has come or gone, and the values that they return
// do not change.
type nodes struct {
	known atomic.Pointer[map[string]*node] // as readers have it; nil: a node has come or gone since. The map does not change.

	lock sync.Mutex // guards the rest. It is written, and by others than readers read, with Cache.mu alone
	all  map[string]*node
	made int // how often a node was added so far
}

// node returns the node of that name, made as a ghost if it is new.
func (s *nodes) node(name string) *node {
	if n, ok := s.all[name]; ok {
		return n
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	n := &node{name: name, pods: newPods()}
	n.id.Store(-1)
	s.all[name] = n
	s.known.Store(nil)
	return n
}

// Node returns one node. It takes no lock, unless a node has come or gone, and
// the value does not change.
func (s *nodes) Node(name string) (placement.Node, bool) {
	if n := s.Look(name); n != nil {
		return *n, true
	}
	return placement.Node{}, false
}

// Look is Node without a copy: nil where it is not known.
func (s *nodes) Look(name string) *placement.Node {
	if n, ok := s.readable()[name]; ok {
		return n.state.Load()
	}
	return nil
}

// readable returns the nodes for those who read.
func (s *nodes) readable() map[string]*node {
	if known := s.known.Load(); known != nil {
		return *known
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	known := maps.Collect(maps.All(s.all)) // not Clone: the race detector does not look into it
	s.known.Store(&known)
	return known
}

// Nodes returns all nodes by name, as Node does.
func (s *nodes) Nodes() []placement.Node {
	known := s.readable()
	out := make([]placement.Node, 0, len(known))
	for _, n := range known {
		if state := n.state.Load(); state != nil {
			out = append(out, *state)
		}
	}
	slices.SortFunc(out, func(a, b placement.Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
