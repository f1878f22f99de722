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
	pods     pods
	expected map[string]*expectation // by UID of the pod
	reads    map[*Read]bool          // under way
	changes  uint64                  // of nodes, so far
	offered  int                     // nodes that are no ghosts
	changed  chan struct{}           // closed by the next of them; nil: none waits
}

func newState() state {
	return state{
		nodes: newNodes(), pods: newPods(), expected: make(map[string]*expectation), reads: make(map[*Read]bool),
	}
}

// pods are known by UID in each role.
type pods [roles]map[string]*pod

// role is what a pod is to a node. It can have both.
type role uint8

const (
	on     role = iota // it holds what it has of the node
	coming             // it is nominated to the node, and holds nothing yet
	roles
)

func newPods() (p pods) {
	for as := range p {
		p[as] = make(map[string]*pod)
	}
	return p
}

// node is what the cache knows under one name. The fields below the first three
// are guarded by Cache.mu.
type node struct {
	real    view          // no state: a ghost
	likely  view          // with the pods that are expected; no state: none is
	changed atomic.Uint64 // which of the cache's changes was the last of this node

	id        int // of all nodes that there have been, the how manieth
	name      string
	inventory *gpu.Inventory // replaced by each SetNode; nil: a ghost
	pods      pods
	expected  map[string]*expectation // by UID of the pod
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

// pod is replaced by all that is heard of it.
type pod struct {
	placement.Holding
	node    string
	assumed bool // the watch has not shown it yet
	read    bool // of an assumed pod: a read next to the watch has

	bindings []time.Time // of an assumed pod: when those that may still land were decided, or the read
}

// since returns what is the latest of an assumed pod: when a binding was decided
// that may still land, or when it was read.
func (p *pod) since() time.Time { return slices.MaxFunc(p.bindings, time.Time.Compare) }

// overtaken reports whether an assumed pod does not fit any more where it is to be.
func (s *state) overtaken(p *pod) bool {
	if !p.assumed || p.read {
		return false
	}
	n, ok := s.all[p.node]
	return !ok || n.inventory == nil || !n.real.state.Load().Bears(p.Holding)
}

// offer records what a node offers; nil: it is deleted.
func (s *state) offer(name string, inv *gpu.Inventory) {
	n := s.node(name)
	switch {
	case n.inventory == nil && inv != nil:
		s.offered++
	case n.inventory != nil && inv == nil:
		s.offered--
	}
	n.inventory = inv
	s.publish(n)
	s.dropIfEmpty(n)
}

func (s *state) dropIfEmpty(n *node) {
	if n.inventory == nil && len(n.pods[on])+len(n.pods[coming])+len(n.expected) == 0 {
		s.drop(n)
	}
}

// set records a pod in a role, in place of what it was in that role before; nil:
// it is nothing any more.
func (s *state) set(as role, uid string, p *pod) {
	if as == on {
		s.expect(uid, nil)
	}
	if old, ok := s.pods[as][uid]; ok && (p == nil || p.node != old.node) {
		delete(s.pods[as], uid)
		n := s.node(old.node)
		delete(n.pods[as], uid)
		s.publish(n)
		s.dropIfEmpty(n)
	}
	if p != nil {
		n := s.node(p.node)
		s.pods[as][uid], n.pods[as][uid] = p, p
		s.publish(n)
	}
}

// publish remakes what readers see of the node.
func (s *state) publish(n *node) {
	defer s.tell()
	defer s.publishLikely(n)
	s.changes++
	n.changed.Store(s.changes)
	n.real.set(n.with(nil))
}

// with returns the node with its pods and some more.
func (n *node) with(more map[string]*expectation) *placement.Node {
	if n.inventory == nil {
		return nil
	}
	holdings := make([]placement.Holding, 0, len(n.pods[on])+len(more))
	for _, p := range n.pods[on] {
		holdings = append(holdings, p.Holding)
	}
	for _, e := range more {
		holdings = append(holdings, e.Holding)
	}
	var nominated []placement.Holding
	for uid, p := range n.pods[coming] {
		if _, assumed := n.pods[on][uid]; !assumed {
			nominated = append(nominated, p.Holding)
		}
	}
	state := placement.NewNode(n.name, *n.inventory, holdings).WithNominated(nominated)
	return &state
}

// tell wakes those who wait for a change.
func (s *state) tell() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}
