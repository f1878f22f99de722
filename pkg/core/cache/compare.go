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

// Difference is a pod or an inventory whose records in two caches differ. Two Differences are equal if
// they concern the same object and no update of the cache came in between.
type Difference struct {
	Pod  placement.PodRef // zero value: the node's inventory differs
	Node string           // the node, or the pod's node

	key    key
	cached Entry
}

// Entry is a cache's record of one pod or one node. A field without a record is nil.
type Entry struct {
	On, Coming *Pod           // records of the pod: as reserved or bound, and as nominated
	Offered    *gpu.Inventory // inventory of the node
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

// key identifies an entry by the pod's UID or the node's name.
type key struct{ pod, node string }

// OfNode reports whether a node's inventory differs, rather than a pod.
func (d Difference) OfNode() bool { return d.Pod == placement.PodRef{} }

// Differences returns the differences between the cache and real, a cache that is rebuilt from the
// objects of the watch. Nodes come first. An assumed pod that real lacks is no difference.
func (c *Cache) Differences(real *Cache) []Difference {
	cached, actual := c.snapshot(), real.snapshot()
	all := maps.Clone(actual)
	maps.Copy(all, cached)
	var out []Difference
	for k := range all {
		e, after := cached[k], actual[k]
		if !e.differs(after) {
			continue
		}
		d := Difference{Node: k.node, key: k, cached: e}
		if known := cmp.Or(e.On, after.On, e.Coming, after.Coming); known != nil {
			d.Pod, d.Node = known.Pod, known.Node
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b Difference) int {
		return cmp.Or(a.Pod.Compare(b.Pod), cmp.Compare(a.Node, b.Node))
	})
	return out
}

// Heal replaces the cached entry of a difference by real's entry, and returns both. The caller must
// call BeginRead before it builds real. Heal returns false and changes nothing if the entries do not
// differ, if the cached entry was replaced since the comparison, or if the watch has reported the
// object since BeginRead: the cache may then be newer than real. A comparison of the cached entries would
// not be enough: if both are missing, the watch may have added and removed the pod in between.
func (r *Read) Heal(d Difference, real *Cache) (before, after Entry, healed bool) {
	before, after = d.cached, real.entry(d.key)
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	_, heard := r.events[d.key]
	if heard || c.find(d.key) != before || !before.differs(after) {
		return before, after, false
	}
	if d.OfNode() {
		c.setInventory(d.Node, after.Offered)
	}
	if podDiffers(before.On, after.On) {
		c.set(placed, d.Pod.UID, after.On)
	}
	if podDiffers(before.Coming, after.Coming) {
		c.set(nominated, d.Pod.UID, after.Coming)
	}
	return before, after, true
}

func (c *Cache) entry(k key) Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.find(k)
}

// snapshot returns all records of the cache, without ghosts. Records are immutable while they are in the
// cache.
func (c *Cache) snapshot() map[key]Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[key]Entry, len(c.all)+len(c.pods[placed]))
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
	e := Entry{On: s.pods[placed][k.pod]}
	if p, ok := s.pods[nominated][k.pod]; ok && !p.own() {
		e.Coming = p
	}
	if n, ok := s.all[k.node]; ok {
		e.Offered = n.inventory
	}
	return e
}

// differs reports whether the cached record differs from the real one.
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
