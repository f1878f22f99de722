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
	ends    time.Time      // the first nomination to expire; zero: none does

	recent [maxRecent]string // the nodes of the last changes, by their numbers
}

// pods are known by UID in each role.
type pods [roles]map[string]*Pod

// role is the state of a pod's record. A pod can have one record in each role.
type role uint8

const (
	on       role = iota // reserved or bound: the pod has memory of the node
	coming               // nominated: the pod has none yet
	expected             // nominated by Expect: pods that fit nowhere else may have the memory
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
	state   atomic.Pointer[placement.Node] // as readers see the node; nil: a ghost
	answers atomic.Pointer[answers]        // about that state
	id      atomic.Int64                   // of all nodes that were added, the how manieth; -1: a ghost. Pods name nodes that never were.

	name      string
	inventory *gpu.Inventory // replaced by each SetNode; nil: a ghost
	pods      pods
}

// Pod is a pod as the cache has it: replaced by all that is heard of it.
type Pod struct {
	placement.Holding // does not change: nodes share it
	Node              string
	Assumed           bool // the watch has not shown it yet

	read bool // of an assumed pod: a read next to the watch has
	held bool // of an assumed pod: kube-scheduler goes on with it, and its binding has not been sent

	bindings []time.Time // of an assumed pod: when those that may still land were decided, or the read
	until    time.Time   // of a nominated pod: it ends then; zero: no time ends it
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
	return !ok || n.inventory == nil || !n.state.Load().StillFits(p.Holding)
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
	s.publish(n)
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
		s.publish(n)
		s.dropIfEmpty(n)
	}
	if p != nil {
		n := s.node(p.Node)
		if n.pods[as] == nil {
			n.pods[as] = make(map[string]*Pod)
		}
		s.pods[as][uid], n.pods[as][uid] = p, p
		s.publish(n)
		if !p.until.IsZero() && (s.ends.IsZero() || p.until.Before(s.ends)) {
			s.ends = p.until
		}
	}
	if c, ok := s.pods[coming][uid]; ok && as == on && (p == nil || p.Node != c.Node) {
		s.publish(s.node(c.Node)) // the nomination does not count while the pod is on a node
	}
}

// publish remakes the state that readers see, after the pods of the node or its inventory have changed.
func (s *state) publish(n *node) {
	defer s.tell()
	s.changes++
	s.recent[s.changes%maxRecent] = n.name
	n.state.Store(s.view(n))
	n.answers.Store(nil) // they are of the state before
}

// view returns a node with its pods; nil: it is a ghost.
func (s *state) view(n *node) *placement.Node {
	if n.inventory == nil {
		return nil
	}
	holdings := make([]*placement.Holding, 0, len(n.pods[on]))
	for _, p := range n.pods[on] {
		holdings = append(holdings, &p.Holding)
	}
	var line, soon []placement.Holding
	for uid, p := range n.pods[coming] {
		if s.pods[on][uid] == nil { // on no node
			line = append(line, p.Holding)
		}
	}
	for uid, p := range n.pods[expected] {
		if n.pods[coming][uid] == nil {
			soon = append(soon, p.Holding)
		}
	}
	slices.SortFunc(soon, func(a, b placement.Holding) int { return a.Pod.Compare(b.Pod) })
	state := placement.NewSharedNode(n.name, *n.inventory, holdings).WithNominated(line)
	state.Expected = soon
	return &state
}

// tell wakes those who wait for a change.
func (s *state) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}
