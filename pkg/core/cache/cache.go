package cache

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

// Cache is safe for use by several goroutines.
type Cache struct {
	// known is nodes as readers have it; nil: a node has come or gone since. The
	// map does not change.
	known atomic.Pointer[map[string]*node]

	mu       sync.Mutex
	nodes    map[string]*node // by name, ghosts included
	pods     pods
	expected map[string]*expectation // by UID of the pod
	reads    map[*Read]bool          // under way
	changes  uint64                  // of nodes, so far
	offered  int                     // nodes that are no ghosts
	made     int                     // nodes, so far
	changed  chan struct{}           // closed by the next of them; nil: none waits
	mix      ranking.Mix

	prices atomic.Pointer[priced]
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
	inventory *gpu.Inventory // made anew by each SetNode; nil: a ghost
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

// pod is made anew by all that is heard of it.
type pod struct {
	placement.Holding
	node    string
	assumed bool // the watch has not told of it yet
	read    bool // of an assumed pod: a read beside the watch has

	bindings []time.Time // of an assumed pod: when those that may still land were decided, or the read
}

// since returns what is the latest of an assumed pod: when a binding was decided
// that may still land, or when it was read.
func (p *pod) since() time.Time { return slices.MaxFunc(p.bindings, time.Time.Compare) }

// onlyCPU reports whether the pod holds nothing of a GPU.
func (p *pod) onlyCPU() bool { return p.Request.Empty() && p.Assignment.None() }

// New returns an empty cache.
func New() *Cache {
	return &Cache{
		nodes: make(map[string]*node), pods: newPods(), expected: make(map[string]*expectation), reads: make(map[*Read]bool),
	}
}

// SetNode records what a node offers: a new node, or a change.
func (c *Cache) SetNode(name string, inv gpu.Inventory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	inv.Devices = slices.Clone(inv.Devices)
	c.offer(name, &inv)
}

// RemoveNode forgets a node. Its pods are kept until they are removed
// themselves.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offer(name, nil)
}

// AddPod records what the API server says of a bound pod, which counts whatever
// was assumed. The assignment may be none: such a pod holds an unknown device.
func (c *Cache) AddPod(nodeName string, h placement.Holding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.pods[on][h.Pod.UID]; ok && old.node == nodeName && old.onlyCPU() && h.Request.Empty() && old.Request.CPU == h.Request.CPU {
		return // most of what is heard is of such pods
	}
	c.set(coming, h.Pod.UID, nil)
	c.set(on, h.Pod.UID, &pod{Holding: h, node: nodeName})
}

// NominatePod records that a pod without a node is to come to one, once others
// have left it for the pod: to these GPUs, or where it goes. An empty name takes
// that back.
func (c *Cache) NominatePod(nodeName string, ref placement.PodRef, req placement.Request, at placement.Assignment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var to *pod
	if p, ok := c.pods[on][ref.UID]; nodeName != "" && (!ok || p.assumed) {
		to = &pod{Holding: placement.Holding{Pod: ref, Request: req, Assignment: at}, node: nodeName}
	}
	c.set(coming, ref.UID, to)
}

// RemovePod forgets a pod that is terminal or gone. A pod that is not known is
// nothing to do.
func (c *Cache) RemovePod(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.reads {
		r.gone[uid] = true
	}
	c.set(coming, uid, nil)
	c.set(on, uid, nil)
}

// RefusePod records that the binding of an assumed pod that was decided at a
// certain time was refused for certain. The assumption is taken back unless
// another binding of the pod may still land.
func (c *Cache) RefusePod(uid string, decided time.Time) {
	c.forget(uid, func(p *pod) bool {
		if i := slices.IndexFunc(p.bindings, decided.Equal); i >= 0 {
			p.bindings = slices.Delete(p.bindings, i, i+1)
		}
		return len(p.bindings) == 0
	})
}

// ForgetPod takes an assumption back, if there is one: the pod is gone or has
// ended.
func (c *Cache) ForgetPod(uid string) (forgotten bool) {
	return c.forget(uid, func(*pod) bool { return true })
}

// ExpirePod takes an assumption back unless a binding was decided at that time
// or later: the caller has found the pod without a node since.
func (c *Cache) ExpirePod(uid string, before time.Time) {
	c.forget(uid, func(p *pod) bool { return p.since().Before(before) })
}

// forget takes an assumption back if it is over. A pod of which the watch has
// told in the meantime stays.
func (c *Cache) forget(uid string, over func(*pod) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[on][uid]
	if !ok || !p.assumed || !over(p) {
		return false
	}
	c.set(on, uid, nil)
	return true
}

// AssumePod chooses GPUs for a pod on a node and reserves them, so that the
// next call sees them taken. A pod that is already on that node gets the same
// answer again, unless that is not known to be bound and has been overtaken: what
// another extender bound meanwhile is on those GPUs. Each answer for a pod that is
// not bound is taken for one more binding of it, which the caller sends.
//
// The error is a *decide.Refusal: what Decide says, or Elsewhere when the pod is on another
// node, or bound to this one without GPUs that are known: nothing is left to decide.
func (c *Cache) AssumePod(ref placement.PodRef, nodeName string, req placement.Request, fallback placement.Policy, now time.Time) (placement.Assignment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[on][ref.UID]; ok {
		if p.node == nodeName && !p.Assignment.None() && !c.overtaken(p) {
			p.bindings = append(p.bindings, now)
			return p.Assignment, nil
		}
		return placement.Assignment{}, decide.NewElsewhere(p.node, p.assumed && !p.read)
	}
	n, ok := c.nodes[nodeName]
	if !ok || n.inventory == nil {
		_, refusal := decide.Decide(placement.Node{Name: nodeName}, ref, req, fallback)
		return placement.Assignment{}, refusal
	}
	c.expect(ref.UID, nil)
	chosen, refusal := n.decide(ref, req, fallback)
	if refusal != nil {
		return placement.Assignment{}, refusal
	}
	c.set(on, ref.UID, &pod{
		Holding: placement.Holding{Pod: ref, Request: req, Assignment: chosen},
		node:    nodeName, assumed: true, bindings: []time.Time{now},
	})
	return chosen, nil
}

// Assumed is a pod whose binding is on its way, or of whose binding the watch
// has not told yet.
type Assumed struct {
	Pod   placement.PodRef
	Node  string
	Since time.Time
}

// AssumedBefore returns the assumed pods of which no binding was decided at a
// point in time or later, and no read was told, oldest first. The caller reads
// each from the API server (BeginRead), and enters it or calls ExpirePod.
func (c *Cache) AssumedBefore(before time.Time) []Assumed {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Assumed
	for _, p := range c.pods[on] {
		if p.assumed && p.since().Before(before) {
			out = append(out, Assumed{Pod: p.Pod, Node: p.node, Since: p.since()})
		}
	}
	slices.SortFunc(out, func(a, b Assumed) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return out
}

// Where returns the node that a pod is on, and whether that is only assumed.
func (c *Cache) Where(uid string) (nodeName string, assumed, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[on][uid]
	if !ok {
		return "", false, false
	}
	return p.node, p.assumed && !p.read, true
}

// Heard reports whether the watch has told that a pod is on a node. Of one that was assumed,
// or that a read has shown, it has not yet.
func (c *Cache) Heard(uid string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[on][uid]
	return ok && !p.assumed
}

// Node returns one node. It takes no lock, unless a node has come or gone, and
// the value does not change.
func (c *Cache) Node(name string) (placement.Node, bool) {
	if n := c.Look(name); n != nil {
		return *n, true
	}
	return placement.Node{}, false
}

// Look is Node without a copy: nil where it is not known.
func (c *Cache) Look(name string) *placement.Node {
	if n, ok := c.readable()[name]; ok {
		return n.real.state.Load()
	}
	return nil
}

// readable returns the nodes for those who read.
func (c *Cache) readable() map[string]*node {
	if known := c.known.Load(); known != nil {
		return *known
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := maps.Clone(c.nodes)
	c.known.Store(&known)
	return known
}

// Changed returns a channel that is closed once some node is not what it was.
// Whoever means to wait for that asks for the channel before he reads nodes.
func (c *Cache) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.changed
}

// Nodes returns all nodes by name, as Node does.
func (c *Cache) Nodes() []placement.Node {
	var out []placement.Node
	for _, n := range c.readable() {
		if state := n.real.state.Load(); state != nil {
			out = append(out, *state)
		}
	}
	slices.SortFunc(out, func(a, b placement.Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// The methods below assume that mu is held.

// overtaken reports whether an assumed pod has no room any more where it is to be.
func (c *Cache) overtaken(p *pod) bool {
	if !p.assumed || p.read {
		return false
	}
	n, ok := c.nodes[p.node]
	return !ok || n.inventory == nil || !n.real.state.Load().Bears(p.Holding)
}

// node returns the node of that name, made as a ghost if it is new.
func (c *Cache) node(name string) *node {
	if n, ok := c.nodes[name]; ok {
		return n
	}
	n := &node{id: c.made, name: name, pods: newPods()}
	c.made++
	c.nodes[name] = n
	c.known.Store(nil)
	return n
}

// offer records what a node offers; nil: it is deleted.
func (c *Cache) offer(name string, inv *gpu.Inventory) {
	n := c.node(name)
	switch {
	case n.inventory == nil && inv != nil:
		c.offered++
	case n.inventory != nil && inv == nil:
		c.offered--
	}
	n.inventory = inv
	c.publish(n)
	c.dropIfEmpty(n)
}

func (c *Cache) dropIfEmpty(n *node) {
	if n.inventory != nil || len(n.pods[on]) > 0 || len(n.pods[coming]) > 0 || len(n.expected) > 0 {
		return
	}
	delete(c.nodes, n.name)
	c.known.Store(nil)
}

// set books a pod in a role, in place of what it was in that role before; nil:
// it is nothing any more.
func (c *Cache) set(as role, uid string, p *pod) {
	if as == on {
		c.expect(uid, nil)
	}
	if old, ok := c.pods[as][uid]; ok && (p == nil || p.node != old.node) {
		delete(c.pods[as], uid)
		n := c.node(old.node)
		delete(n.pods[as], uid)
		c.publish(n)
		c.dropIfEmpty(n)
	}
	if p != nil {
		n := c.node(p.node)
		c.pods[as][uid], n.pods[as][uid] = p, p
		c.publish(n)
	}
}

// publish remakes what readers see of the node.
func (c *Cache) publish(n *node) {
	defer c.tell()
	defer c.publishLikely(n)
	c.changes++
	n.changed.Store(c.changes)
	if n.inventory == nil {
		n.real.set(nil)
		return
	}
	n.real.set(n.with(nil))
}

// with returns the node with its pods and some more.
func (n *node) with(more map[string]*expectation) *placement.Node {
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
func (c *Cache) tell() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}
