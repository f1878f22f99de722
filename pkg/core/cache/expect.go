package cache

import (
	"time"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Moment is how long a pod is expected on a node: kube-scheduler binds soon after
// it has asked, or not at all.
const Moment = 3 * time.Second

// Expect nominates a pod to a node, on the GPUs that it would get there now, for kube-scheduler is
// about to bind it. It reserves nothing: Node.Expected has the pod until it is bound or
// gone, a Moment has passed or Unexpect takes the nomination back. Any other nomination of the pod
// remains.
func (c *Cache) Expect(ref placement.PodRef, nodeName string, req placement.Request, fallback placement.Policy, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unexpect(ref.UID)
	n, ok := c.all[nodeName]
	if !ok || n.inventory == nil || c.pods[on][ref.UID] != nil || c.pods[coming][ref.UID] != nil {
		return
	}
	if chosen, refusal := n.decide(ref, req, fallback); refusal == nil {
		h := placement.Holding{Pod: ref, Request: req, Assignment: chosen}
		c.set(coming, ref.UID, &Pod{Holding: h, Node: nodeName, until: now.Add(Moment), expected: true})
	}
}

// Unexpect ends the nomination by Expect, and does what Expire does. It reports whether any pod is
// still expected.
func (c *Cache) Unexpect(uid string, now time.Time) (some bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unexpect(uid)
	c.expire(now)
	for _, p := range c.pods[coming] {
		some = some || p.expected
	}
	return some
}

// decide chooses GPUs for a pod, if possible beside those of the expected pods. If another pod is
// nominated to the node, expected pods do not count: memory that is free may be reserved for the
// nominated pod, and beside the expected pods it would land elsewhere.
func (n *node) decide(ref placement.PodRef, req placement.Request, fallback placement.Policy) (placement.Assignment, *decide.Refusal) {
	state := *n.state.Load()
	if len(state.Expected) > 0 && len(state.Nominated) == 0 {
		if chosen, refusal := decide.Decide(state.WithExpected(ref), ref, req, fallback); refusal == nil {
			return chosen, nil
		}
	}
	return decide.Decide(state, ref, req, fallback)
}
