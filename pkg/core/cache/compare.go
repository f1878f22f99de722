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

	key    key
	cached Entry
}

// Entry is what a cache has of one pod or of one node; nil: it does not know.
type Entry struct {
	On, Coming *Pod
	Offered    *gpu.Inventory
}

func (e Entry) String() string {
	var parts []string
	switch {
	case e.On != nil:
		for _, s := range e.On.Assignment.Shares {
			parts = append(parts, fmt.Sprintf("%s: %d", s.Device, s.Units))
		}
		return fmt.Sprintf("on %s with [%s], assumed %t, admitted %t", e.On.Node, strings.Join(parts, ", "), e.On.Assumed, e.On.Admitted)
	case e.Offered != nil:
		for _, d := range e.Offered.Devices {
			parts = append(parts, fmt.Sprintf("%s: %d, takes pods %t", d.UUID, d.Allocatable, d.Status.TakesPods()))
		}
		return fmt.Sprintf("offers [%s]", strings.Join(parts, "; "))
	case e.Coming != nil:
		return "nominated to " + e.Coming.Node
	default:
		return "not there"
	}
}

// key is what an entry is of: the UID of a pod, or the name of a node.
type key struct{ pod, node string }

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
		d := Difference{Node: k.node, key: k, cached: e}
		if known := cmp.Or(e.On, is.On, e.Coming, is.Coming); known != nil {
			d.Pod, d.Node = known.Pod, known.Node
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b Difference) int {
		return cmp.Or(a.Pod.Compare(b.Pod), cmp.Compare(a.Node, b.Node))
	})
	return out
}

// Heal makes of what differs what it is in real, and returns what it was and
// what it is. It does nothing, and reports false, when the two do
// not differ, and when the cache has heard of the thing since the difference
// was found: then it may know better.
func (c *Cache) Heal(d Difference, real *Cache) (was, is Entry, healed bool) {
	was, is = d.cached, real.entry(d.key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.find(d.key) != was || !was.differs(is) {
		return was, is, false
	}
	if d.OfNode() {
		c.offer(d.Node, is.Offered)
	}
	if podDiffers(was.On, is.On) {
		c.set(on, d.Pod.UID, is.On)
	}
	if podDiffers(was.Coming, is.Coming) {
		c.set(coming, d.Pod.UID, is.Coming)
	}
	return was, is, true
}

func (c *Cache) entry(k key) Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.find(k)
}

// snapshot returns all that the cache has: of nodes what they offer, ghosts left
// out. None of the values changes while it is in the cache.
func (c *Cache) snapshot() map[key]Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[key]Entry, len(c.all)+len(c.pods[on]))
	for name, n := range c.all {
		if n.inventory != nil {
			out[key{node: name}] = Entry{Offered: n.inventory}
		}
	}
	for _, pods := range c.pods {
		for uid := range pods {
			out[key{pod: uid}] = c.find(key{pod: uid})
		}
	}
	return out
}

func (s *state) find(k key) Entry {
	e := Entry{On: s.pods[on][k.pod]}
	if p, ok := s.pods[coming][k.pod]; ok && !p.own() {
		e.Coming = p
	}
	if n, ok := s.all[k.node]; ok {
		e.Offered = n.inventory
	}
	return e
}

// differs reports whether the cached entry is not what is real.
func (e Entry) differs(real Entry) bool {
	return podDiffers(e.On, real.On) || podDiffers(e.Coming, real.Coming) || !reflect.DeepEqual(e.Offered, real.Offered)
}

func podDiffers(p, r *Pod) bool {
	if p == nil || r == nil {
		assumed := p != nil && p.Assumed
		return p != r && !assumed
	}
	return p.Assumed != r.Assumed || p.Node != r.Node || !reflect.DeepEqual(p.Holding, r.Holding)
}
