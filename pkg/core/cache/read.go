package cache

import (
	"time"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Read is a read of pods from the API server in parallel with the watch, which may advance meanwhile.
type Read struct {
	cache *Cache
	heard map[key]bool // pods and nodes that the watch has told of meanwhile; true: a removed pod
}

// BeginRead must be called before the request to the API server, and End after the last Enter.
func (c *Cache) BeginRead() *Read {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &Read{cache: c, heard: make(map[key]bool)}
	c.reads[r] = true
	return r
}

// End ends the read. Enter must not be called after it.
func (r *Read) End() {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	delete(r.cache.reads, r)
}

// Enter records a pod that the read has found on a node, no matter which scheduler bound it. Until the
// watch confirms it, the pod is assumed, and AssumedBefore returns it to be read again. Enter returns true
// if no earlier read had shown the pod.
func (r *Read) Enter(nodeName string, h placement.Holding, now time.Time) bool {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[on][h.Pod.UID]
	if r.heard[key{pod: h.Pod.UID}] || ok && !p.Assumed {
		return false
	}
	c.set(on, h.Pod.UID, &Pod{Holding: h, Node: nodeName, Assumed: true, read: true, bindings: []time.Time{now}})
	return !ok || !p.read
}

// hear records that the watch has told of a pod or a node.
func (s *state) hear(k key, removed bool) {
	for r := range s.reads {
		r.heard[k] = removed
	}
}
