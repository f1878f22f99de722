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

// Cache tracks GPU allocations. It is safe for concurrent use.
type Cache struct {
	mu sync.Mutex // guards state, except for readers of nodes
	state

	ranking.Market // stores requests and prices: see Reprice
}

// New returns an empty cache.
func New() *Cache {
	return &Cache{state: state{
		nodes: nodes{all: make(map[string]*node)}, pods: newPods(), reads: make(map[*Read]bool), changed: make(chan struct{}),
	}}
}

// SetNode records the inventory of a new or changed node.
func (c *Cache) SetNode(name string, inv gpu.Inventory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recordEvent(key{node: name}, false)
	inv.Devices = slices.Clone(inv.Devices)
	c.setInventory(name, &inv)
}

// RemoveNode removes a node. Its pods remain until RemovePod removes them.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recordEvent(key{node: name}, false)
	c.setInventory(name, nil)
}

// AddPod records a bound pod that the watch has shown. It replaces the record of an assumed pod. A pod
// without an assignment is charged to every GPU of its node. Of a pod without GPU memory, only the CPU is
// charged.
func (c *Cache) AddPod(nodeName string, h placement.Holding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recordEvent(key{pod: h.Pod.UID}, false)
	if old, ok := c.pods[placed][h.Pod.UID]; ok && old.Node == nodeName && old.Request.Empty() && h.Request.Empty() && old.Request.CPU == h.Request.CPU {
		return // most updates are for such pods
	}
	c.set(nominated, h.Pod.UID, nil)
	c.set(placed, h.Pod.UID, &Pod{Holding: h, Node: nodeName})
}

// NominatePod records that a pod without a node waits until other pods leave a node. The nomination is for the
// assigned GPUs, or for any GPU if the assignment is empty. It lasts until the time expires, or until the next
// call if expires is zero. An empty node name removes the nomination.
func (c *Cache) NominatePod(nodeName string, ref placement.PodRef, req placement.Request, assignment placement.Assignment, expires time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recordEvent(key{pod: ref.UID}, false)
	if p, ok := c.pods[nominated][ref.UID]; ok && nodeName == "" && p.own() {
		return // only the cache has this nomination
	}
	c.nominate(nodeName, placement.Holding{Pod: ref, Request: req, Assignment: assignment}, expires)
}

// QueuePod records that a pod waits until a node has admitted or placed other pods. Parameter since is
// the start of the wait. The pod precedes pods that could be confused with it until the entry expires.
// An empty node name removes the entry. A nomination by NominatePod takes precedence.
func (c *Cache) QueuePod(nodeName string, ref placement.PodRef, req placement.Request, since, expires time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[nominated][ref.UID]
	if !ok && nodeName == "" || ok && (p.Waits.IsZero() || p.Node == nodeName && p.Waits.Equal(since)) {
		return
	}
	c.nominate(nodeName, placement.Holding{Pod: ref, Request: req, Waits: since}, expires)
}

// own reports whether the nomination exists only in the cache and not at the API server.
func (p *Pod) own() bool { return !p.Waits.IsZero() }

func (c *Cache) nominate(nodeName string, h placement.Holding, expires time.Time) {
	var to *Pod
	if p, ok := c.pods[placed][h.Pod.UID]; nodeName != "" && (!ok || p.Assumed) {
		to = &Pod{Holding: h, Node: nodeName, expires: expires}
	}
	c.set(nominated, h.Pod.UID, to)
}

// Expire removes the nominations and expectations that have ended.
func (c *Cache) Expire(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.firstExpiry.IsZero() || c.firstExpiry.After(now) {
		return
	}
	c.firstExpiry = time.Time{}
	for _, as := range []role{nominated, expected} {
		for uid, p := range c.pods[as] {
			switch {
			case p.expires.IsZero():
			case !p.expires.After(now):
				c.set(as, uid, nil)
			case c.firstExpiry.IsZero() || p.expires.Before(c.firstExpiry):
				c.firstExpiry = p.expires
			}
		}
	}
}

// RemovePod removes a pod that is terminal or deleted. It ignores unknown pods.
func (c *Cache) RemovePod(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recordEvent(key{pod: uid}, true)
	c.set(nominated, uid, nil)
	c.set(placed, uid, nil)
}

// RefusePod records that the API server definitely refused a binding of an assumed pod. Parameter
// decided is the time of the decision, and identifies the binding. The assumption ends unless another
// binding of the pod may still succeed.
func (c *Cache) RefusePod(uid string, decided time.Time) {
	c.forget(uid, func(p *Pod) bool {
		if i := slices.IndexFunc(p.bindings, decided.Equal); i >= 0 {
			p.bindings = slices.Delete(p.bindings, i, i+1)
		}
		return len(p.bindings) == 0
	})
}

// ForgetPod ends the assumption of a pod that is deleted or terminal. It returns false if the pod is not
// assumed.
func (c *Cache) ForgetPod(uid string) (forgotten bool) {
	return c.forget(uid, func(*Pod) bool { return true })
}

// ExpirePod ends the assumption of a pod if all its bindings were decided before the given time. The
// caller must have read the pod since then, and found it without a node.
func (c *Cache) ExpirePod(uid string, before time.Time) {
	c.forget(uid, func(p *Pod) bool { return p.since().Before(before) })
}

// forget ends the assumption of a pod if isObsolete returns true. It keeps a pod that the watch has shown in the
// meantime.
func (c *Cache) forget(uid string, isObsolete func(*Pod) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[placed][uid]
	if !ok || !p.Assumed || !isObsolete(p) {
		return false
	}
	c.set(placed, uid, nil)
	return true
}

// AssumePod picks GPUs for a pod on a node and reserves them, so that they are allocated for the next
// call. A pod that is already on that node gets the same GPUs again, unless it is only assumed and no longer
// fits there, because another process has bound pods to these GPUs meanwhile. Each successful call for an
// assumed pod records one more binding, which the caller must send.
//
// The error is a *decide.Refusal: the one from Decide, or Elsewhere if the pod is on another node, or is
// bound to this node without known GPUs.
func (c *Cache) AssumePod(ref placement.PodRef, nodeName string, req placement.Request, fallback placement.Policy, now time.Time) (placement.Assignment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[placed][ref.UID]; ok {
		if p.Node == nodeName && !p.Assignment.None() && !c.isOvertaken(p) {
			p.bindings = append(p.bindings, now)
			return p.Assignment, nil
		}
		return placement.Assignment{}, &decide.Refusal{Reason: decide.Elsewhere, Node: p.Node, Assumed: p.Assumed && !p.read}
	}
	n, ok := c.all[nodeName]
	if !ok || n.inventory == nil {
		return placement.Assignment{}, Question{Pod: ref, Request: req, Fallback: fallback}.Evaluate(placement.Node{Name: nodeName})
	}
	c.set(expected, ref.UID, nil)
	chosen, refusal := n.decide(ref, req, fallback)
	if refusal != nil {
		return placement.Assignment{}, refusal
	}
	c.set(placed, ref.UID, &Pod{
		Holding: placement.Holding{Pod: ref, Request: req, Assignment: chosen},
		Node:    nodeName, Assumed: true, bindings: []time.Time{now},
	})
	return chosen, nil
}

// Assumed is a pod whose binding is in progress or not yet confirmed by the watch.
type Assumed struct {
	Pod   placement.PodRef
	Node  string
	Since time.Time
}

// HoldPod records whether kube-scheduler has yet to send the binding of an assumed pod. kube-scheduler's
// steps before the binding have no time limit.
func (c *Cache) HoldPod(uid string, unsent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[placed][uid]; ok && p.Assumed {
		p.unsent = unsent
	}
}

// AssumedBefore returns the assumed pods, oldest first. It omits pods with a binding that was decided, or a
// read that ended, at the given time or later. It also omits pods whose binding kube-scheduler has not sent
// yet. For each returned pod, the caller must read the pod from the API server (BeginRead) and call
// Read.AddPod or ExpirePod.
func (c *Cache) AssumedBefore(before time.Time) []Assumed {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Assumed
	for _, p := range c.pods[placed] {
		if p.Assumed && !p.unsent && p.since().Before(before) {
			out = append(out, Assumed{Pod: p.Pod, Node: p.Node, Since: p.since()})
		}
	}
	slices.SortFunc(out, func(a, b Assumed) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return out
}

// PodNode returns the node of a pod. Result assumed is true if neither the watch nor a read has shown
// the pod there.
func (c *Cache) PodNode(uid string) (nodeName string, assumed, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[placed][uid]; ok {
		return p.Node, p.Assumed && !p.read, true
	}
	return "", false, false
}

// IsConfirmed reports whether the watch has shown the pod on its node. It returns false for a pod that is
// assumed or that only a read has shown.
func (c *Cache) IsConfirmed(uid string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[placed][uid]
	return ok && !p.Assumed
}

// Reprice computes new prices from the present nodes if the last prices are outdated.
func (c *Cache) Reprice() {
	changes, _ := c.Changes()
	c.Market.Reprice(changes, c.Nodes)
}

// Changed returns a channel that is closed at the next change of a node. To miss no change, get the
// channel before reading the nodes.
func (c *Cache) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}
