package cache

import (
	"time"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// ExpectationTTL is the lifetime of an expectation. kube-scheduler binds a pod soon after its requests about the
// pod, or not at all.
const ExpectationTTL = 3 * time.Second

// Expect records that kube-scheduler is about to bind a pod to a node, with the GPUs that the pod would get
// there now. It reserves nothing. Node.Expected lists the pod until the pod is bound or gone, ExpectationTTL
// has passed, or Unexpect is called. A nomination of the pod remains, and on the same node it replaces the
// expectation.
func (c *Cache) Expect(ref placement.PodRef, nodeName string, req placement.Request, fallback placement.Policy, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(expected, ref.UID, nil)
	n, ok := c.all[nodeName]
	if !ok || n.inventory == nil || c.pods[placed][ref.UID] != nil {
		return
	}
	if chosen, refusal := n.decide(ref, req, fallback); refusal == nil {
		h := placement.Holding{Pod: ref, Request: req, Assignment: chosen}
		c.set(expected, ref.UID, &Pod{Holding: h, Node: nodeName, expires: now.Add(ExpectationTTL)})
	}
}

// Unexpect undoes Expect. It reports whether other pods are expected on any node.
func (c *Cache) Unexpect(uid string) (others bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(expected, uid, nil)
	return len(c.pods[expected]) > 0
}

// decide picks GPUs for a pod. If possible, it leaves the expected pods their GPUs. It ignores expected pods
// while any pod is nominated to the node: beside the expected pods, decide.Reserved could reserve other GPUs
// for the nominated pod, and the GPUs that the nominated pod needs would seem free.
func (n *node) decide(ref placement.PodRef, req placement.Request, fallback placement.Policy) (placement.Assignment, *decide.Refusal) {
	state := *n.state.Load()
	if len(state.Expected) > 0 && len(state.Nominated) == 0 {
		if chosen, refusal := decide.Decide(state.WithExpected(ref), ref, req, fallback); refusal == nil {
			return chosen, nil
		}
	}
	return decide.Decide(state, ref, req, fallback)
}
