package cache

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

// Difference is a pod, or what a node offers, that a cache has otherwise than
// another. Two are equal when they are of the same thing and the cache has heard
// nothing of it in between.
type Difference struct {
	Pod  placement.PodRef // the zero value: it is the node that differs
	Node string           // that node, or the pod's

	cached entry
}

// entry is what a cache has of one pod or of one node; nil: it does not know.
type entry struct {
	pod       *pod
	nominated *pod
	offered   *gpu.Inventory
}

// OfNode reports whether it is a node that differs, rather than a pod.
func (d Difference) OfNode() bool { return d.Pod == placement.PodRef{} }

// Differences returns in what the cache is not what real is, nodes first. A pod
// that the cache assumes and real does not have is no difference: nobody but the
// cache knows of it.
func (c *Cache) Differences(real *Cache) []Difference {
	cached, actual := c.contents(), real.contents()
	var out []Difference
	for name := range union(cached.nodes, actual.nodes) {
		if e := cached.node(name); e.differs(actual.node(name)) {
			out = append(out, Difference{Node: name, cached: e})
		}
	}
	for uid := range union(cached.pods, actual.pods, cached.nominated, actual.nominated) {
		e, is := cached.pod(uid), actual.pod(uid)
		if e.differs(is) {
			known := cmp.Or(e.pod, is.pod, e.nominated, is.nominated)
			out = append(out, Difference{Pod: known.Pod, Node: known.node, cached: e})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int {
		return cmp.Or(
			cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name),
			cmp.Compare(a.Pod.UID, b.Pod.UID), cmp.Compare(a.Node, b.Node),
		)
	})
	return out
}

// Heal makes of what differs what it is in real, and returns what it was and
// what it is, for people. It does nothing, and reports false, when the two do
// not differ, and when the cache has heard of the thing since the difference
// was found: then it may know better.
func (c *Cache) Heal(d Difference, real *Cache) (was, is string, healed bool) {
	right := real.entry(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.find(d) != d.cached || !d.cached.differs(right) {
		return "", "", false
	}
	if d.OfNode() {
		c.offer(d.Node, right.offered)
	} else {
		c.healPod(d, right)
	}
	return d.cached.String(), right.String(), true
}

// healPod assumes that mu is held.
func (c *Cache) healPod(d Difference, right entry) {
	switch {
	case !podDiffers(d.cached.pod, right.pod):
	case right.pod == nil:
		c.remove(d.Pod.UID)
	default:
		c.put(right.pod)
	}
	c.withdraw(d.Pod.UID)
	if right.nominated != nil {
		c.nominate(right.nominated)
	}
}

// contents are the pods by UID, those that are nominated, and what the nodes
// offer that are not ghosts. None of the values changes while it is in the cache.
type contents struct {
	pods, nominated map[string]*pod
	nodes           map[string]*gpu.Inventory
}

func (c contents) node(name string) entry { return entry{offered: c.nodes[name]} }

func (c contents) pod(uid string) entry {
	return entry{pod: c.pods[uid], nominated: c.nominated[uid]}
}

func (c *Cache) contents() contents {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes := make(map[string]*gpu.Inventory)
	for name, n := range c.nodes {
		if n.inventory != nil {
			nodes[name] = n.inventory
		}
	}
	return contents{pods: maps.Clone(c.pods), nominated: maps.Clone(c.nominated), nodes: nodes}
}

// entry returns what the cache has of that which differs.
func (c *Cache) entry(d Difference) entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.find(d)
}

// find assumes that mu is held.
func (c *Cache) find(d Difference) entry {
	if !d.OfNode() {
		return entry{pod: c.pods[d.Pod.UID], nominated: c.nominated[d.Pod.UID]}
	}
	if n, ok := c.nodes[d.Node]; ok {
		return entry{offered: n.inventory}
	}
	return entry{}
}

// differs reports whether the cached entry is not what is real.
func (e entry) differs(real entry) bool {
	return podDiffers(e.pod, real.pod) || nominationDiffers(e.nominated, real.nominated) || !reflect.DeepEqual(e.offered, real.offered)
}

func podDiffers(p, r *pod) bool {
	if p == nil || r == nil {
		assumed := p != nil && p.assumed
		return p != r && !assumed
	}
	return p.assumed != r.assumed || p.node != r.node || !reflect.DeepEqual(p.Holding, r.Holding)
}

func nominationDiffers(p, r *pod) bool {
	if p == nil || r == nil {
		return p != r
	}
	return p.node != r.node || !reflect.DeepEqual(p.Holding, r.Holding)
}

func (e entry) String() string {
	var parts []string
	switch {
	case e.pod != nil:
		for _, s := range e.pod.Assignment.Shares {
			parts = append(parts, fmt.Sprintf("%s: %d", s.Device, s.Units))
		}
		return fmt.Sprintf("on %s with [%s], assumed %t, admitted %t", e.pod.node, strings.Join(parts, ", "), e.pod.assumed, e.pod.Settled)
	case e.offered != nil:
		for _, d := range e.offered.Devices {
			parts = append(parts, fmt.Sprintf("%s: %d, healthy %t", d.UUID, d.Capacity, d.Healthy))
		}
		return fmt.Sprintf("offers [%s]", strings.Join(parts, "; "))
	case e.nominated != nil:
		return "nominated to " + e.nominated.node
	default:
		return "not there"
	}
}

func union[V any](sets ...map[string]V) map[string]bool {
	out := make(map[string]bool)
	for _, set := range sets {
		for k := range set {
			out[k] = true
		}
	}
	return out
}
