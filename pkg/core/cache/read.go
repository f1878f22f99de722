package cache

import (
	"time"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Read is a read of objects in parallel with the watch, which may report events in the meantime.
type Read struct {
	cache  *Cache
	events map[key]bool // pods and nodes that the watch has reported since BeginRead; true: a removed pod
}

// BeginRead starts a Read. The caller calls it before the request to the API server, and End after the
// last AddPod.
func (c *Cache) BeginRead() *Read {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &Read{cache: c, events: make(map[key]bool)}
	c.reads[r] = true
	return r
}

// End ends the read. AddPod must not be called after it.
func (r *Read) End() {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	delete(r.cache.reads, r)
}

// AddPod records a pod that the read has found on a node, no matter which scheduler bound it. Until the
// watch confirms it, the pod is assumed, and AssumedBefore returns it to be read again. AddPod returns true
// if no earlier read had shown the pod.
func (r *Read) AddPod(nodeName string, h placement.Holding, now time.Time) bool {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[placed][h.Pod.UID]
	if r.events[key{pod: h.Pod.UID}] || ok && !p.Assumed {
		return false
	}
	c.set(placed, h.Pod.UID, &Pod{Holding: h, Node: nodeName, Assumed: true, read: true, bindings: []time.Time{now}})
	return !ok || !p.read
}

// recordEvent records in all reads in progress that the watch has reported a pod or a node.
func (s *state) recordEvent(k key, removed bool) {
	for r := range s.reads {
		r.events[k] = removed
	}
}
