package cache

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// state is what the cache knows. Its methods assume that Cache.mu is locked.
type state struct {
	nodes
	pods    pods
	reads   map[*Read]bool // under way
	changes uint64         // of nodes, so far
	offered int            // nodes that are no ghosts
	changed chan struct{}  // closed by the next of them
	ends    time.Time      // the first nomination or expectation to expire; zero: none does

	recent [maxRecent]string // the nodes of the last changes, by their numbers
}

// pods are known by UID in each role.
type pods [roles]map[string]*Pod

// role is what a pod is to a node. It can be coming and another.
type role uint8

const (
	on       role = iota // it holds what it has of the node
	coming               // it is nominated to the node, and holds nothing yet
	expected             // kube-scheduler got the answer that it goes best there, and has not bound it yet
	roles
)

func newPods() (p pods) {
	for as := range p {
		p[as] = make(map[string]*Pod)
	}
	return p
}

// node is what the cache knows under one name. The fields below the first three
// are guarded by Cache.mu.
type node struct {
	real   view         // no state: a ghost
	likely view         // with the pods that are expected; no state: none is
	id     atomic.Int64 // of all nodes that were added, the how manieth; -1: a ghost. Pods name nodes that never were.

	name      string
	inventory *gpu.Inventory // replaced by each SetNode; nil: a ghost
	pods      pods
}

// view is a node as readers see it, and what was answered about it.
type view struct {
	state   atomic.Pointer[placement.Node]
	answers atomic.Pointer[answers]
}

func (v *view) set(n *placement.Node) {
	v.state.Store(n)
	v.answers.Store(nil) // they are of what was
}

// Pod is a pod as the cache has it: replaced by all that is heard of it.
type Pod struct {
	placement.Holding
	Node    string
	Assumed bool // the watch has not shown it yet

	read bool // of an assumed pod: a read next to the watch has

	bindings []time.Time // of an assumed pod: when those that may still land were decided, or the read
	until    time.Time   // of an expected or nominated pod: it ends then; zero: no time ends it
}

// since returns what is the latest of an assumed pod: when a binding was decided
// that may still land, or when it was read.
func (p *Pod) since() time.Time { return slices.MaxFunc(p.bindings, time.Time.Compare) }

// overtaken reports whether an assumed pod does not fit any more where it is to be.
func (s *state) overtaken(p *Pod) bool {
	if !p.Assumed || p.read {
		return false
	}
	n, ok := s.all[p.Node]
	return !ok || n.inventory == nil || !n.real.state.Load().Bears(p.Holding)
}

// offer records what a node offers; nil: it is deleted.
func (s *state) offer(name string, inv *gpu.Inventory) {
	n := s.node(name)
	switch {
	case n.inventory == nil && inv != nil:
		s.offered++
		s.lock.Lock()
		n.id.Store(int64(s.made))
		s.made++
		s.lock.Unlock()
	case n.inventory != nil && inv == nil:
		s.offered--
		n.id.Store(-1)
	}
	n.inventory = inv
	s.publish(n, on)
	s.dropIfEmpty(n)
}

// dropIfEmpty forgets a ghost that no pod keeps.
func (s *state) dropIfEmpty(n *node) {
	if n.inventory != nil || len(n.pods[on])+len(n.pods[coming])+len(n.pods[expected]) > 0 {
		return
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.all, n.name)
	s.known.Store(nil)
}

// set records a pod in a role, in place of what it was in that role before; nil:
// it is nothing any more.
func (s *state) set(as role, uid string, p *Pod) {
	if as == on {
		s.set(expected, uid, nil)
	}
	if old, ok := s.pods[as][uid]; ok && (p == nil || p.Node != old.Node) {
		delete(s.pods[as], uid)
		n := s.node(old.Node)
		delete(n.pods[as], uid)
		s.publish(n, as)
		s.dropIfEmpty(n)
	}
	if p != nil {
		n := s.node(p.Node)
		s.pods[as][uid], n.pods[as][uid] = p, p
		s.publish(n, as)
		if !p.until.IsZero() && (s.ends.IsZero() || p.until.Before(s.ends)) {
			s.ends = p.until
		}
	}
	if c, ok := s.pods[coming][uid]; ok && as == on && (p == nil || p.Node != c.Node) {
		s.publish(s.node(c.Node), coming) // the nomination does not count while the pod is on a node
	}
}

// expire ends what has a time that has passed.
func (s *state) expire(now time.Time) {
	if s.ends.IsZero() || s.ends.After(now) {
		return
	}
	s.ends = time.Time{}
	for _, as := range [...]role{coming, expected} {
		for uid, p := range s.pods[as] {
			switch {
			case p.until.IsZero():
			case !p.until.After(now):
				s.set(as, uid, nil)
			case s.ends.IsZero() || p.until.Before(s.ends):
				s.ends = p.until
			}
		}
	}
}

// publish remakes what readers see of the node, for its pods of a role have changed, or what it
// offers. Who is expected shows to those who ask for it.
func (s *state) publish(n *node, as role) {
	if as != expected {
		defer s.tell()
		s.changes++
		s.recent[s.changes%maxRecent] = n.name
		n.real.set(s.with(n, on))
	}
	var likely *placement.Node
	if len(n.pods[expected]) > 0 {
		likely = s.with(n, on, expected)
	}
	n.likely.set(likely)
}

// with returns a node with its pods of some roles; nil: it is a ghost.
func (s *state) with(n *node, some ...role) *placement.Node {
	if n.inventory == nil {
		return nil
	}
	holdings := make([]placement.Holding, 0, len(n.pods[on])+len(n.pods[expected]))
	for _, as := range some {
		for _, p := range n.pods[as] {
			holdings = append(holdings, p.Holding)
		}
	}
	var nominated []placement.Holding
	for uid, p := range n.pods[coming] {
		if _, assumed := s.pods[on][uid]; !assumed { // there or elsewhere
			nominated = append(nominated, p.Holding)
		}
	}
	state := placement.NewNode(n.name, *n.inventory, holdings).WithNominated(nominated)
	return &state
}

// tell wakes those who wait for a change.
func (s *state) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}
