package cache

import (
	"time"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Moment is how long a pod is expected on a node: kube-scheduler binds soon after
// it has asked, or not at all.
const Moment = 3 * time.Second

// Expect records that kube-scheduler is going to bind a pod to a node, on the
// GPUs that it would get there now. It reserves nothing. Until the pod is bound or
// gone, a Moment has passed or Unexpect takes it back, the pod counts in Expecting
// and for those questions that say so.
func (c *Cache) Expect(ref placement.PodRef, nodeName string, req placement.Request, fallback placement.Policy, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.all[nodeName]
	if _, known := c.pods[on][ref.UID]; known || !ok || n.inventory == nil {
		return
	}
	c.set(expected, ref.UID, nil)
	if chosen, refusal := n.decide(ref, req, fallback); refusal == nil {
		h := placement.Holding{Pod: ref, Request: req, Assignment: chosen}
		c.set(expected, ref.UID, &Pod{Holding: h, Node: nodeName, until: now.Add(Moment)})
	}
}

// Unexpect takes back that a pod is expected, and does what Expire does. It reports
// whether any pod is expected still.
func (c *Cache) Unexpect(uid string, now time.Time) (some bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(expected, uid, nil)
	c.expire(now)
	return len(c.pods[expected]) > 0
}

// Expecting returns the nodes on which pods are expected, by name and with these pods.
func (c *Cache) Expecting() map[string]*placement.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]*placement.Node, len(c.pods[expected]))
	for _, p := range c.pods[expected] {
		if n := c.all[p.Node].likely.state.Load(); n != nil {
			out[p.Node] = n
		}
	}
	return out
}

// decide chooses GPUs for a pod, if possible on what is left by those that are
// expected. Where a pod is nominated to the node, these do not count: it may be kept a
// place that is free, and among those that are expected it would have another.
func (n *node) decide(ref placement.PodRef, req placement.Request, fallback placement.Policy) (placement.Assignment, *decide.Refusal) {
	if likely := n.likely.state.Load(); likely != nil && len(likely.Nominated) == 0 {
		if chosen, refusal := decide.Decide(*likely, ref, req, fallback); refusal == nil {
			return chosen, nil
		}
	}
	return decide.Decide(*n.real.state.Load(), ref, req, fallback)
}
