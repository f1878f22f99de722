package cache

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

// Cache is safe for use by several goroutines.
type Cache struct {
	mu sync.Mutex // guards the state, but for how nodes are read
	state

	ranking.Market // of its nodes: see Reprice
}

// New returns an empty cache.
func New() *Cache {
	return &Cache{state: state{
		nodes: nodes{all: make(map[string]*node)}, pods: newPods(), reads: make(map[*Read]bool), changed: make(chan struct{}),
	}}
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
// was assumed. The assignment may be none: such a pod holds an unknown device. Of a pod without
// GPU memory the CPU alone counts.
func (c *Cache) AddPod(nodeName string, h placement.Holding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.pods[on][h.Pod.UID]; ok && old.Node == nodeName && old.Request.Empty() && h.Request.Empty() && old.Request.CPU == h.Request.CPU {
		return // most of what is heard is of such pods
	}
	c.set(coming, h.Pod.UID, nil)
	c.set(on, h.Pod.UID, &Pod{Holding: h, Node: nodeName})
}

// NominatePod records that a pod without a node is to come to one, once others
// have left it for the pod: to these GPUs, or where it goes; until then, or, where
// that is zero, until it is taken back. An empty name takes it back.
func (c *Cache) NominatePod(nodeName string, ref placement.PodRef, req placement.Request, at placement.Assignment, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[coming][ref.UID]; ok && nodeName == "" && p.own() {
		return // the API server does not know of that
	}
	c.nominate(nodeName, placement.Holding{Pod: ref, Request: req, Assignment: at}, until)
}

// QueuePod records that a pod has waited since a time for a node to admit or place its pods. Until then it
// precedes others that could be taken for it. An empty name takes that back. A nomination counts instead.
func (c *Cache) QueuePod(nodeName string, ref placement.PodRef, req placement.Request, since, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[coming][ref.UID]
	if !ok && nodeName == "" || ok && (p.Waits.IsZero() || p.Node == nodeName && p.Waits.Equal(since)) {
		return
	}
	c.nominate(nodeName, placement.Holding{Pod: ref, Request: req, Waits: since}, until)
}

// own reports whether only the cache knows of a nomination, and the API server does not.
func (p *Pod) own() bool { return !p.Waits.IsZero() }

func (c *Cache) nominate(nodeName string, h placement.Holding, until time.Time) {
	var to *Pod
	if p, ok := c.pods[on][h.Pod.UID]; nodeName != "" && (!ok || p.Assumed) {
		to = &Pod{Holding: h, Node: nodeName, until: until}
	}
	c.set(coming, h.Pod.UID, to)
}

// Expire ends the nominations whose time has passed.
func (c *Cache) Expire(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ends.IsZero() || c.ends.After(now) {
		return
	}
	c.ends = time.Time{}
	for _, as := range []role{coming, expected} {
		for uid, p := range c.pods[as] {
			switch {
			case p.until.IsZero():
			case !p.until.After(now):
				c.set(as, uid, nil)
			case c.ends.IsZero() || p.until.Before(c.ends):
				c.ends = p.until
			}
		}
	}
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
	c.forget(uid, func(p *Pod) bool {
		if i := slices.IndexFunc(p.bindings, decided.Equal); i >= 0 {
			p.bindings = slices.Delete(p.bindings, i, i+1)
		}
		return len(p.bindings) == 0
	})
}

// ForgetPod takes an assumption back, if there is one: the pod is gone or has
// ended.
func (c *Cache) ForgetPod(uid string) (forgotten bool) {
	return c.forget(uid, func(*Pod) bool { return true })
}

// ExpirePod takes an assumption back unless a binding was decided at that time
// or later: the caller has found the pod without a node since.
func (c *Cache) ExpirePod(uid string, before time.Time) {
	c.forget(uid, func(p *Pod) bool { return p.since().Before(before) })
}

// forget takes an assumption back if it is over. A pod that the watch has
// reported in the meantime is kept.
func (c *Cache) forget(uid string, over func(*Pod) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[on][uid]
	if !ok || !p.Assumed || !over(p) {
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
		if p.Node == nodeName && !p.Assignment.None() && !c.overtaken(p) {
			p.bindings = append(p.bindings, now)
			return p.Assignment, nil
		}
		return placement.Assignment{}, &decide.Refusal{Reason: decide.Elsewhere, Node: p.Node, Assumed: p.Assumed && !p.read}
	}
	n, ok := c.all[nodeName]
	if !ok || n.inventory == nil {
		return placement.Assignment{}, Question{Pod: ref, Request: req, Fallback: fallback}.Ask(placement.Node{Name: nodeName})
	}
	c.set(expected, ref.UID, nil)
	chosen, refusal := n.decide(ref, req, fallback)
	if refusal != nil {
		return placement.Assignment{}, refusal
	}
	c.set(on, ref.UID, &Pod{
		Holding: placement.Holding{Pod: ref, Request: req, Assignment: chosen},
		Node:    nodeName, Assumed: true, bindings: []time.Time{now},
	})
	return chosen, nil
}

// Assumed is a pod whose binding is on its way, or that the watch has not
// reported as bound yet.
type Assumed struct {
	Pod   placement.PodRef
	Node  string
	Since time.Time
}

// HoldPod records that kube-scheduler goes on with an assumed pod before it sends a binding, however
// long that takes, or that it has sent one or given up.
func (c *Cache) HoldPod(uid string, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[on][uid]; ok && p.Assumed {
		p.held = held
	}
}

// AssumedBefore returns the assumed pods for which no binding was decided at a
// point in time or later, and no read has ended, oldest first. Pods that are held are not among
// them. The caller reads
// each from the API server (BeginRead), and enters it or calls ExpirePod.
func (c *Cache) AssumedBefore(before time.Time) []Assumed {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Assumed
	for _, p := range c.pods[on] {
		if p.Assumed && !p.held && p.since().Before(before) {
			out = append(out, Assumed{Pod: p.Pod, Node: p.Node, Since: p.since()})
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
	if p, ok := c.pods[on][uid]; ok {
		return p.Node, p.Assumed && !p.read, true
	}
	return "", false, false
}

// Heard reports whether the watch has shown that a pod is on a node. Of one that was assumed,
// or that a read has shown, it has not yet.
func (c *Cache) Heard(uid string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[on][uid]
	return ok && !p.Assumed
}

// Reprice makes prices of the nodes as they are, where those that there are are old.
func (c *Cache) Reprice() {
	changes, _ := c.Changes()
	c.Market.Reprice(changes, c.Nodes)
}

// Changed returns a channel that is closed once some node is not what it was.
// A caller who means to wait for that asks for the channel before it reads nodes.
func (c *Cache) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}
