package cache

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
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
	pod     [roles]*pod
	offered *gpu.Inventory
}

// key is what an entry is of: the UID of a pod, or the name of a node.
type key struct{ pod, node string }

func (d Difference) key() key {
	if d.OfNode() {
		return key{node: d.Node}
	}
	return key{pod: d.Pod.UID}
}

// OfNode reports whether it is a node that differs, rather than a pod.
func (d Difference) OfNode() bool { return d.Pod == placement.PodRef{} }

// Differences returns in what the cache is not what real is, nodes first. A pod
// that the cache assumes and real does not have is no difference: only the
// cache knows of it.
func (c *Cache) Differences(real *Cache) []Difference {
	cached, actual := c.snapshot(), real.snapshot()
	all := maps.Clone(actual)
	maps.Copy(all, cached)
	var out []Difference
	for k := range all {
		e, is := cached[k], actual[k]
		if !e.differs(is) {
			continue
		}
		d := Difference{Node: k.node, cached: e}
		if known := cmp.Or(e.pod[on], is.pod[on], e.pod[coming], is.pod[coming]); known != nil {
			d.Pod, d.Node = known.Pod, known.node
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b Difference) int {
		return cmp.Or(a.Pod.Compare(b.Pod), cmp.Compare(a.Node, b.Node))
	})
	return out
}

// Heal makes of what differs what it is in real, and returns what it was and
// what it is, for people. It does nothing, and reports false, when the two do
// not differ, and when the cache has heard of the thing since the difference
// was found: then it may know better.
func (c *Cache) Heal(d Difference, real *Cache) (was, is string, healed bool) {
	right := real.snapshot()[d.key()]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.find(d.key()) != d.cached || !d.cached.differs(right) {
		return "", "", false
	}
	if d.OfNode() {
		c.offer(d.Node, right.offered)
	}
	for as, p := range right.pod {
		if podDiffers(d.cached.pod[as], p) {
			c.set(role(as), d.Pod.UID, p)
		}
	}
	return d.cached.String(), right.String(), true
}

// snapshot returns all that the cache has: of nodes what they offer, ghosts left
// out. None of the values changes while it is in the cache.
func (c *Cache) snapshot() map[key]entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[key]entry, len(c.all)+len(c.pods[on]))
	for name, n := range c.all {
		if n.inventory != nil {
			out[key{node: name}] = entry{offered: n.inventory}
		}
	}
	for _, pods := range c.pods {
		for uid := range pods {
			out[key{pod: uid}] = c.find(key{pod: uid})
		}
	}
	return out
}

func (s *state) find(k key) (e entry) {
	if n, ok := s.all[k.node]; ok {
		e.offered = n.inventory
	}
	for as := range e.pod {
		e.pod[as] = s.pods[as][k.pod]
	}
	return e
}

// differs reports whether the cached entry is not what is real.
func (e entry) differs(real entry) bool {
	return podDiffers(e.pod[on], real.pod[on]) || podDiffers(e.pod[coming], real.pod[coming]) || !reflect.DeepEqual(e.offered, real.offered)
}

func podDiffers(p, r *pod) bool {
	if p == nil || r == nil {
		assumed := p != nil && p.assumed
		return p != r && !assumed
	}
	return p.assumed != r.assumed || p.node != r.node || !reflect.DeepEqual(p.Holding, r.Holding)
}

func (e entry) String() string {
	var parts []string
	switch {
	case e.pod[on] != nil:
		for _, s := range e.pod[on].Assignment.Shares {
			parts = append(parts, fmt.Sprintf("%s: %d", s.Device, s.Units))
		}
		return fmt.Sprintf("on %s with [%s], assumed %t, admitted %t", e.pod[on].node, strings.Join(parts, ", "), e.pod[on].assumed, e.pod[on].Admitted)
	case e.offered != nil:
		for _, d := range e.offered.Devices {
			parts = append(parts, fmt.Sprintf("%s: %d, takes pods %t", d.UUID, d.Allocatable, d.Status.TakesPods()))
		}
		return fmt.Sprintf("offers [%s]", strings.Join(parts, "; "))
	case e.pod[coming] != nil:
		return "nominated to " + e.pod[coming].node
	default:
		return "not there"
	}
}
