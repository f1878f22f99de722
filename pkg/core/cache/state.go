package cache

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// state is the cache's data. Its methods require that Cache.mu is locked.
type state struct {
	nodes
	pods        pods
	reads       map[*Read]bool // in progress
	changes     uint64         // number of changes of nodes
	offered     int            // number of nodes that are not ghosts
	changed     chan struct{}  // closed at the next change
	firstExpiry time.Time      // earliest end of a nomination; zero: no nomination ends

	recent [maxRecent]string // names of changed nodes: change i is at i%maxRecent
}

// pods are the records of pods in each role, by UID.
type pods [roles]map[string]*Pod

// role is the state of a pod's record. A pod can have one record in each role.
type role uint8

const (
	placed    role = iota // reserved or bound: the pod has memory of the node
	nominated             // nominated, but not by Expect: the pod has no memory yet
	expected              // nominated by Expect: other pods get the memory only if they fit nowhere else
	roles
)

func newPods() (p pods) {
	for as := range p {
		p[as] = make(map[string]*Pod)
	}
	return p
}

// node is the record of one node name. Cache.mu guards the fields after id.
type node struct {
	state   atomic.Pointer[placement.Node] // the readers' state; nil: a ghost
	answers atomic.Pointer[decisions]      // decisions for state
	id      atomic.Int64                   // number of nodes added before this one; -1: a ghost, which is a deleted node, or a name that only pods have

	name      string
	inventory *gpu.Inventory // replaced by each SetNode; nil: a ghost
	pods      pods
}

// Pod is the record of a pod. Each update replaces it; only unsent and bindings change in place.
type Pod struct {
	placement.Holding // immutable: nodes share it
	Node              string
	Assumed           bool // the watch has not shown the pod on the node yet

	read   bool // for an assumed pod: a read has shown the pod on the node
	unsent bool // for an assumed pod: kube-scheduler has not sent the binding yet

	bindings []time.Time // for an assumed pod: decision times of bindings that may still succeed, or the time of the read
	expires  time.Time   // for a nominated pod: end of the nomination; zero: none
}

// since returns the latest decision time of an assumed pod's bindings, or the time of its read.
func (p *Pod) since() time.Time { return slices.MaxFunc(p.bindings, time.Time.Compare) }

// isOvertaken reports whether an assumed pod no longer fits its GPUs.
func (s *state) isOvertaken(p *Pod) bool {
	if !p.Assumed || p.read {
		return false
	}
	n, ok := s.all[p.Node]
	return !ok || n.inventory == nil || !n.state.Load().StillFits(p.Holding)
}

// setInventory records the inventory of a node. If inv is nil, the node is deleted.
func (s *state) setInventory(name string, inv *gpu.Inventory) {
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

// dropIfEmpty removes a ghost without pods.
func (s *state) dropIfEmpty(n *node) {
	if n.inventory != nil || len(n.pods[placed])+len(n.pods[nominated])+len(n.pods[expected]) > 0 {
		return
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.all, n.name)
	s.known.Store(nil)
}

// set replaces the record of a pod in a role. If p is nil, set removes the record.
func (s *state) set(as role, uid string, p *Pod) {
	if as == placed {
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
		if !p.expires.IsZero() && (s.firstExpiry.IsZero() || p.expires.Before(s.firstExpiry)) {
			s.firstExpiry = p.expires
		}
	}
	if c, ok := s.pods[nominated][uid]; ok && as == placed && (p == nil || p.Node != c.Node) {
		s.publish(s.node(c.Node)) // a nomination has an effect only while its pod is on no node
	}
}

// publish rebuilds the readers' state after a change of the node's pods or inventory.
func (s *state) publish(n *node) {
	defer s.signal()
	s.changes++
	s.recent[s.changes%maxRecent] = n.name
	n.state.Store(s.view(n))
	n.answers.Store(nil) // these decisions belong to the old state
}

// view returns the readers' state of a node, or nil for a ghost.
func (s *state) view(n *node) *placement.Node {
	if n.inventory == nil {
		return nil
	}
	holdings := make([]*placement.Holding, 0, len(n.pods[placed]))
	for _, p := range n.pods[placed] {
		holdings = append(holdings, &p.Holding)
	}
	var nominatedPods, expectedPods []placement.Holding
	for uid, p := range n.pods[nominated] {
		if s.pods[placed][uid] == nil { // on no node
			nominatedPods = append(nominatedPods, p.Holding)
		}
	}
	for uid, p := range n.pods[expected] {
		if n.pods[nominated][uid] == nil {
			expectedPods = append(expectedPods, p.Holding)
		}
	}
	slices.SortFunc(expectedPods, func(a, b placement.Holding) int { return a.Pod.Compare(b.Pod) })
	state := placement.NewSharedNode(n.name, *n.inventory, holdings).WithNominated(nominatedPods)
	state.Expected = expectedPods
	return &state
}

// signal wakes the goroutines that wait for a change.
func (s *state) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}
