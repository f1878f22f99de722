package cache

import (
	"time"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Read is a read of pods next to the watch, which may tell more while it lasts.
type Read struct {
	cache *Cache
	gone  map[string]bool // UIDs of the pods that were removed meanwhile
}

// BeginRead is called before the API server is asked, and End in the end.
func (c *Cache) BeginRead() *Read {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &Read{cache: c, gone: make(map[string]bool)}
	c.reads[r] = true
	return r
}

// End ends the read. Nothing is entered after it.
func (r *Read) End() {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	delete(r.cache.reads, r)
}

// Enter records a pod that the read has found on a node, no matter who bound it there.
// Until the watch tells of it, it is assumed, and handed to the caller to be read
// again. Enter reports whether that is news.
func (r *Read) Enter(nodeName string, h placement.Holding, now time.Time) bool {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[on][h.Pod.UID]
	if r.gone[h.Pod.UID] || ok && !p.Assumed {
		return false
	}
	c.set(on, h.Pod.UID, &Pod{Holding: h, Node: nodeName, Assumed: true, read: true, bindings: []time.Time{now}})
	return !ok || !p.read
}
