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

// entry is what a cache has of one pod or of one node; nil: it knows neither.
type entry struct {
	pod     *pod
	offered *gpu.Inventory
}

// OfNode reports whether it is a node that differs, rather than a pod.
func (d Difference) OfNode() bool { return d.Pod == placement.PodRef{} }

// Differences returns in what the cache is not what real is, nodes first. A pod
// that the cache assumes and real does not have is no difference: nobody but the
// cache knows of it.
func (c *Cache) Differences(real *Cache) []Difference {
	pods, nodes := c.contents()
	realPods, realNodes := real.contents()
	var out []Difference
	for name := range union(nodes, realNodes) {
		if cached := (entry{offered: nodes[name]}); cached.differs(entry{offered: realNodes[name]}) {
			out = append(out, Difference{Node: name, cached: cached})
		}
	}
	for uid := range union(pods, realPods) {
		if cached := (entry{pod: pods[uid]}); cached.differs(entry{pod: realPods[uid]}) {
			known := cmp.Or(pods[uid], realPods[uid])
			out = append(out, Difference{Pod: known.Pod, Node: known.node, cached: cached})
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
	switch {
	case d.OfNode():
		c.offer(d.Node, right.offered)
	case right.pod == nil:
		c.remove(d.Pod.UID)
	default:
		c.put(right.pod)
	}
	return d.cached.String(), right.String(), true
}

// contents returns the pods by UID, and what the nodes offer that are not
// ghosts. None of the values changes while it is in the cache.
func (c *Cache) contents() (map[string]*pod, map[string]*gpu.Inventory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes := make(map[string]*gpu.Inventory)
	c.nodes.Range(func(name, value any) bool {
		if offered := value.(*node).inventory; offered != nil {
			nodes[name.(string)] = offered
		}
		return true
	})
	return maps.Clone(c.pods), nodes
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
		return entry{pod: c.pods[d.Pod.UID]}
	}
	if n, ok := c.lookup(d.Node); ok {
		return entry{offered: n.inventory}
	}
	return entry{}
}

// differs reports whether the cached entry is not what is real.
func (e entry) differs(real entry) bool {
	p, r := e.pod, real.pod
	switch {
	case p == nil || r == nil:
		assumed := p != nil && p.assumed
		return p != r && !assumed || !reflect.DeepEqual(e.offered, real.offered)
	default:
		return p.assumed != r.assumed || p.node != r.node || !reflect.DeepEqual(p.Holding, r.Holding)
	}
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
	default:
		return "not there"
	}
}

func union[V any](a, b map[string]V) map[string]bool {
	out := make(map[string]bool, max(len(a), len(b)))
	for k := range a {
		out[k] = true
	}
	for k := range b {
		out[k] = true
	}
	return out
}
