package grants

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// version is the version of the checkpoint's format.
const version = 1

// maxReads is the number of failed reads after which Load sets the checkpoint aside, about 30 seconds.
const maxReads = 120

// state is the content of the checkpoint.
type state struct {
	Version int                   `json:"v"`
	Grants  []Grant               `json:"grants"`
	Former  map[gpu.SlotID]Former `json:"former,omitempty"`
}

// Former is the level of a slot in the format of version 0.2.
type Former struct {
	Level gpu.Enforcement `json:"level"`
	MPS   int             `json:"mps,omitempty"`
}

// Table contains the grants of a node. It is safe for concurrent use.
type Table struct {
	store  checkpoint.Store // nil if the table ends with the process
	former string           // file with the levels of version 0.2; empty if none
	log    *zap.Logger

	save sync.Mutex // serializes writes

	mu     sync.Mutex // guards the rest
	loaded bool
	failed bool                                 // the last write failed
	state  state                                // its slices and maps are replaced, never modified
	count  int                                  // grants of this process
	before int                                  // number of grants before the kubelet's last registration of the plugin
	listed map[gpu.SlotID]*allocation.Allocated // from the kubelet's last list
}

// NewTable returns a table with the grants in the checkpoint. Load reads it again, because the previous process
// may still add grants. Former is the file in which version 0.2 recorded levels.
func NewTable(store checkpoint.Store, former string, log *zap.Logger) *Table {
	t := &Table{former: former, log: log}
	var last state
	if store != nil {
		last = checkpoint.Peek[state](store, version)
		t.store = checkpoint.Bounded(store, maxReads)
	}
	t.state, _ = t.withFormer(last.usable())
	return t
}

// usable returns the state without incomplete grants.
func (s state) usable() state {
	s.Grants = slices.DeleteFunc(s.Grants, func(g Grant) bool { return len(g.Slots) == 0 || g.Response == nil })
	return s
}

// Load reads the checkpoint, unless it has been read already. No other process may still serve the kubelet. An
// error leaves the table unchanged, and the caller retries.
func (t *Table) Load() error {
	written, err := t.load()
	if err == nil && !written {
		t.write()
	}
	return err
}

// load reads the checkpoint. It reports whether the checkpoint already contains the whole state.
func (t *Table) load() (written bool, err error) {
	t.save.Lock()
	defer t.save.Unlock()
	if t.store == nil || t.isLoaded() {
		return true, nil
	}
	read, _, err := checkpoint.Load[state](t.store, version, t.log)
	if err != nil {
		return false, fmt.Errorf("read the grants of GPU memory: %w", err)
	}
	read, former := t.withFormer(read.usable())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loaded, t.state = true, read
	return !former, nil
}

// GiveWay stops all writes until the next Load, because another process serves the kubelet and writes the
// checkpoint.
func (t *Table) GiveWay() {
	t.save.Lock()
	defer t.save.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loaded = false
}

func (t *Table) isLoaded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.loaded
}

// withFormer adds the levels of version 0.2, if its file exists. Each write of the checkpoint removes that
// file, so a rollback to version 0.2 happened after the last write. The checkpoint's grants of these slots have
// ended.
func (t *Table) withFormer(s state) (out state, found bool) {
	s.Version = version
	data, err := os.ReadFile(t.former)
	if err != nil {
		return s, false
	}
	var levels map[gpu.SlotID]Former
	if err := json.Unmarshal(data, &levels); err != nil {
		t.log.Warn("levels of version 0.2 cannot be read: the annotations of pods count", zap.String("file", t.former), zap.Error(err))
		return s, false
	}
	granted := func(id gpu.SlotID) bool { _, later := levels[id]; return later }
	s.Grants = slices.DeleteFunc(s.Grants, func(g Grant) bool { return slices.ContainsFunc(g.Slots, granted) })
	former := make(map[gpu.SlotID]Former)
	maps.Copy(former, s.Former)
	maps.Copy(former, levels)
	s.Former = former
	return s, true
}

// write writes the checkpoint. If that fails, the next process rebuilds the table.
func (t *Table) write() {
	t.save.Lock()
	defer t.save.Unlock()
	t.mu.Lock()
	loaded, now := t.loaded, t.state
	t.mu.Unlock()
	if !loaded {
		return
	}
	data, err := json.Marshal(now)
	if err == nil {
		err = t.store.Write(data)
	}
	t.mu.Lock()
	t.failed = err != nil
	t.mu.Unlock()
	if err != nil {
		t.log.Warn("grants are not recorded", zap.Error(err))
		return
	}
	if t.former != "" {
		_ = os.Remove(t.former) // the checkpoint contains its levels
	}
}

// Retry writes the checkpoint if the last write failed. Its grants may contain slots that other containers have
// by now.
func (t *Table) Retry() {
	t.mu.Lock()
	failed := t.failed
	t.mu.Unlock()
	if failed {
		t.write()
	}
}

// Put records a grant that the kubelet is about to get.
func (t *Table) Put(g Grant) {
	g.Slots = slices.Sorted(slices.Values(g.Slots))
	t.mu.Lock()
	t.count++
	g.number = t.count
	old := func(o Grant) bool { return g.replaces(o, o.number <= t.before && t.holder(o) == nil) }
	t.state.Grants = append(slices.DeleteFunc(slices.Clone(t.state.Grants), old), g)
	t.state.Former = maps.Clone(t.state.Former)
	for _, id := range g.Slots {
		delete(t.state.Former, id)
	}
	t.mu.Unlock()
	t.write()
}

// Count returns the number of grants that this process has recorded.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

// Registered marks the grants so far: the kubelet that registered the plugin may have restarted and lost them.
func (t *Table) Registered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.before = t.count
}

// Grants returns all grants, which the caller must not modify. A grant is recent if it is newer than the
// kubelet's last registration of the plugin.
func (t *Table) Grants() (grants []Grant, recent func(Grant) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.before
	return t.state.Grants, func(g Grant) bool { return g.number > before }
}

// Find returns the grant of a container by its slots of one resource.
func (t *Table) Find(h allocation.Allocated) (g Grant, found bool) {
	grants, _ := t.Grants()
	slots := slices.Sorted(slices.Values(h.Slots))
	for _, one := range slices.Backward(grants) {
		if !slices.Equal(one.Slots, slots) {
			continue
		}
		if one.Container == h.Container && one.Pod == h.Name && one.Namespace == h.Namespace {
			return one, true
		}
		if !found {
			g, found = one, true
		}
	}
	return g, found
}

// FindInit returns the grants of a pod's init container: of memory and of cores, or nil. Given is the
// container's environment, or nil if unknown. The kubelet's answer in it decides between equal containers of
// several pods.
func (t *Table) FindInit(pod placement.PodRef, container string, units int, given map[string]string) (memory, cores *Grant) {
	grants, _ := t.Grants()
	for i := range grants {
		g := &grants[i]
		if !g.Init || g.Namespace != pod.Namespace || g.Pod != pod.Name || g.UID != "" && g.UID != pod.UID {
			continue
		}
		switch {
		case g.Resource() == gpu.Cores && g.Container == container:
			cores = g
		case g.Resource() == gpu.Memory && len(g.Slots) == units && (g.Container == container || g.Container == "" && memory == nil):
			memory = g
		}
	}
	if memory == nil || !memory.answers(given) {
		memory = cmp.Or(answering(grants, units, given), memory)
	}
	return memory, cores
}

// answering returns the newest memory grant of an init container, or of an unknown pod, with the given number
// of units and the given environment.
func answering(grants []Grant, units int, given map[string]string) *Grant {
	for i := range slices.Backward(grants) {
		g := &grants[i]
		if g.Resource() == gpu.Memory && len(g.Slots) == units && (g.Init || g.Pod == "") && g.answers(given) {
			return g
		}
	}
	return nil
}

// Attribute records that a grant belongs to an init container of a pod. If the init container had another
// grant, the two containers swap their grants.
func (t *Table) Attribute(pod placement.PodRef, container string, grant Grant) {
	if grant.ref() == pod && grant.Container == container {
		return
	}
	is, was := grant, grant
	is.Namespace, is.Pod, is.UID, is.Container, is.Init = pod.Namespace, pod.Name, pod.UID, container, true
	t.mu.Lock()
	grants := slices.Clone(t.state.Grants)
	for i, g := range grants {
		switch {
		case slices.Equal(g.Slots, grant.Slots) && g.ref() == grant.ref() && g.Container == grant.Container:
			grants[i] = is
		case g.Init && g.ref() == pod && g.Container == container && g.Resource() == grant.Resource():
			g.Namespace, g.Pod, g.UID, g.Container, g.Init = was.Namespace, was.Pod, was.UID, was.Container, was.Init
			grants[i] = g
		}
	}
	t.state.Grants = grants
	t.mu.Unlock()
	t.write()
}

// Adopt matches the table with the kubelet's list of containers (s.Allocated). Count is the number of grants at
// the time of the list. A grant whose slots are listed at another pod moves there. A listed container without a
// grant, from version 0.2 or a lost file, gets one without a response, at the level that version 0.2 recorded.
func (t *Table) Adopt(s allocation.State, count int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listed = make(map[gpu.SlotID]*allocation.Allocated)
	for i := range s.Allocated {
		for _, id := range s.Allocated[i].Slots {
			t.listed[id] = &s.Allocated[i]
		}
	}
	grants := slices.Clone(t.state.Grants)
	for i, g := range grants {
		h := t.holder(g)
		if h != nil && g.number <= count && (h.Namespace != g.Namespace || h.Name != g.Pod || g.UID == "") {
			g.Namespace, g.Pod, g.UID, g.Container = h.Namespace, h.Name, admitted(s, *h), ""
			if slices.Equal(g.Slots, slices.Sorted(slices.Values(h.Only(g.Resource())))) {
				g.Container, g.Init = h.Container, false
			}
			grants[i] = g
		}
	}
	t.state.Grants = t.complete(grants, s, count)
}

// holder returns the listed container with slots of a grant. A container that is smaller than its pod's init
// container has only some of its slots. The caller holds mu.
func (t *Table) holder(g Grant) *allocation.Allocated {
	for _, id := range g.Slots {
		if h := t.listed[id]; h != nil {
			return h
		}
	}
	return nil
}

// complete adds a grant for each listed container and resource without one. The caller holds mu.
func (t *Table) complete(grants []Grant, s allocation.State, count int) []Grant {
	for _, h := range s.Allocated {
		for _, r := range []gpu.Resource{gpu.Memory, gpu.Cores} {
			slots := slices.Sorted(slices.Values(h.Only(r)))
			settled := func(g Grant) bool {
				return slices.Equal(g.Slots, slots) || g.number > count && g.overlaps(Grant{Slots: slots})
			}
			if len(slots) == 0 || slices.ContainsFunc(grants, settled) {
				continue
			}
			given, err := allocation.Resolve(s, r, slots)
			if _, out := errors.AsType[*gpu.OutOfUse](err); err != nil && !out {
				continue // the GPU is gone
			}
			to := placement.PodRef{Namespace: h.Namespace, Name: h.Name, UID: admitted(s, h)}
			g := NewGrant(allocation.Attributed{Pod: to, Container: placement.Container{Name: h.Container, Kind: placement.App}}, given, s.Inventory, nil)
			former := t.formerOf(slots)
			g.Level, g.MPS = former.Level, former.MPS
			grants = append(grants, g)
		}
	}
	return grants
}

// admitted returns the UID of the pod for a list entry. It is empty for a pod that may not be admitted yet: the
// entry may belong to an earlier pod of the same name.
func admitted(s allocation.State, h allocation.Allocated) string {
	for _, pod := range s.Pods {
		if h.Of(pod.Pod) && pod.Admitted {
			return pod.Pod.UID
		}
	}
	return ""
}

// Keep drops the grants up to number count that fail the test. Later grants may belong to pods that are newer
// than the test.
func (t *Table) Keep(count int, has func(Grant) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.Grants = slices.DeleteFunc(slices.Clone(t.state.Grants), func(g Grant) bool { return g.number <= count && !has(g) })
}

// FormerLevel returns the weakest level of some slots, and the MPS protocol, from the record of version 0.2.
// Both are empty if a slot has no record.
func (t *Table) FormerLevel(slots ...gpu.SlotID) (out Former) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.formerOf(slots)
}

// formerOf implements FormerLevel. The caller holds mu.
func (t *Table) formerOf(slots []gpu.SlotID) (out Former) {
	for i, id := range slots {
		one, ok := t.state.Former[id]
		if !ok {
			return Former{}
		}
		if one.Level = cmp.Or(one.Level, gpu.EnforcementAdvisory); i == 0 || !one.Level.AtLeast(out.Level) {
			out.Level = one.Level
		}
		out.MPS = max(out.MPS, one.MPS)
	}
	return out
}

// Alive returns, unless the lock is never released.
func (t *Table) Alive() {
	t.mu.Lock()
	defer t.mu.Unlock()
}
