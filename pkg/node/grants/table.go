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

// Former is a recorded enforcement level and MPS protocol: version 0.2's record of a slot, or the result of
// State.Recorded for a container.
type Former struct {
	Level gpu.Enforcement `json:"level"`
	MPS   int             `json:"mps,omitempty"`
}

// Table contains the grants of a node. It is safe for concurrent use.
type Table struct {
	store  checkpoint.Store // nil if the grants need not outlive the process
	former string           // file with the levels of version 0.2; empty if none
	log    *zap.Logger

	save sync.Mutex // serializes writes, and changes of the field loaded

	mu              sync.Mutex // guards the rest
	loaded          bool
	failed          bool                                 // the last write failed
	state           state                                // its slices and maps are replaced, never modified
	count           int                                  // number of grants that this process has recorded
	registeredCount int                                  // value of count at the plugin's last registration with the kubelet
	listed          map[gpu.SlotID]*allocation.Allocated // from the kubelet's last list
}

// NewTable returns a table with the grants in the checkpoint. Load reads the checkpoint again, because the
// previous process may record more grants until it stops. The file `former` contains the levels that version
// 0.2 recorded.
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

// usable returns the state without the grants that lack slots or a response.
func (s state) usable() state {
	s.Grants = slices.DeleteFunc(s.Grants, func(g Grant) bool { return len(g.Slots) == 0 || g.Response == nil })
	return s
}

// Load reads the checkpoint, unless Load has already succeeded since the last GiveWay. Before the call, the
// caller must make sure that no other process serves the kubelet, because the serving process writes the
// checkpoint. If Load returns an error, the table is unchanged, and the caller must retry.
func (t *Table) Load() error {
	written, err := t.load()
	if err == nil && !written {
		t.write()
	}
	return err
}

// load implements Load, and reports whether the checkpoint already contains the whole state.
func (t *Table) load() (written bool, err error) {
	t.save.Lock()
	defer t.save.Unlock()
	if t.store == nil || t.loaded {
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

// GiveWay stops all writes until the next Load. Call it when another process serves the kubelet, because that
// process writes the checkpoint.
func (t *Table) GiveWay() {
	t.save.Lock()
	defer t.save.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loaded = false
}

// withFormer adds the levels of version 0.2 to a state, if their file exists. Each write of the checkpoint
// removes the file. If the file exists, version 0.2 has run since the last write, and has allocated the slots
// in the file. withFormer therefore deletes the checkpoint's grants of these slots.
func (t *Table) withFormer(s state) (out state, found bool) {
	s.Version = version
	data, err := os.ReadFile(t.former)
	if err != nil {
		return s, false
	}
	var levels map[gpu.SlotID]Former
	if err := json.Unmarshal(data, &levels); err != nil {
		t.log.Warn("levels of version 0.2 cannot be read; using the levels in the pods' annotations", zap.String("file", t.former), zap.Error(err))
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

// write writes the checkpoint. If the write fails, Retry repeats it. If the process ends before that, the next
// process adopts the missing grants from the kubelet's list.
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
		_ = os.Remove(t.former) // the checkpoint now contains the levels
	}
}

// Retry writes the checkpoint if the last write failed. Until then, the file may assign slots to containers
// that no longer have them.
func (t *Table) Retry() {
	t.mu.Lock()
	failed := t.failed
	t.mu.Unlock()
	if failed {
		t.write()
	}
}

// Put records a grant. The caller must call it before it answers the kubelet.
func (t *Table) Put(g Grant) {
	g.Slots = slices.Sorted(slices.Values(g.Slots))
	t.mu.Lock()
	t.count++
	g.number = t.count
	old := func(o Grant) bool { return g.replaces(o, o.number <= t.registeredCount && t.holder(o) == nil) }
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

// Registered marks all recorded grants as earlier: the plugin has registered with the kubelet, which may have
// restarted and lost them.
func (t *Table) Registered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.registeredCount = t.count
}

// Grants returns all grants, which the caller must not modify. The function `recent` reports whether a grant is
// newer than the plugin's last registration with the kubelet.
func (t *Table) Grants() (grants []Grant, recent func(Grant) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.registeredCount
	return t.state.Grants, func(g Grant) bool { return g.number > before }
}

// Find returns the grant with exactly the slots in `h`, which must be slots of one resource. Among several such
// grants, it prefers a grant of the same container, and otherwise returns the newest.
func (t *Table) Find(h allocation.Allocated) (g Grant, found bool) {
	grants, _ := t.Grants()
	slots := slices.Sorted(slices.Values(h.Slots))
	for _, candidate := range slices.Backward(grants) {
		if !slices.Equal(candidate.Slots, slots) {
			continue
		}
		if candidate.Container == h.Container && candidate.Pod == h.Name && candidate.Namespace == h.Namespace {
			return candidate, true
		}
		if !found {
			g, found = candidate, true
		}
	}
	return g, found
}

// FindInit returns the grants of a pod's init container, one of memory and one of cores. A grant is nil if it
// is not recorded. The map `environment` is the container's environment, or nil if the environment is unknown.
// If init containers of several pods have the same number of units, the environment distinguishes them: it
// contains the variables of the plugin's response to Allocate.
func (t *Table) FindInit(pod placement.PodRef, container string, units int, environment map[string]string) (memory, cores *Grant) {
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
	if memory == nil || !memory.answers(environment) {
		memory = cmp.Or(findByEnvironment(grants, units, environment), memory)
	}
	return memory, cores
}

// findByEnvironment returns the newest memory grant with the given number of units whose response matches the
// environment. It considers only grants of init containers and grants of unknown pods.
func findByEnvironment(grants []Grant, units int, environment map[string]string) *Grant {
	for i := range slices.Backward(grants) {
		g := &grants[i]
		if g.Resource() == gpu.Memory && len(g.Slots) == units && (g.Init || g.Pod == "") && g.answers(environment) {
			return g
		}
	}
	return nil
}

// Attribute records that a grant belongs to the named init container of a pod. If that container has another
// grant of the same resource, the two grants exchange their containers.
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

// Adopt updates the table from the kubelet's list of containers (s.Allocated). The number `count` is the number
// of grants before the call that returned the list. Newer grants override the list. If the kubelet lists a
// grant's slots at another pod, Adopt moves the grant to that pod. A listed container has no grant if version
// 0.2 served it, or if the checkpoint was lost. Adopt then adds a grant without a response, at the level that
// version 0.2 recorded.
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
			if slices.Equal(g.Slots, slices.Sorted(slices.Values(h.SlotsOf(g.Resource())))) {
				g.Container, g.Init = h.Container, false
			}
			grants[i] = g
		}
	}
	t.state.Grants = t.complete(grants, s, count)
}

// holder returns the listed container that has some of a grant's slots. One common slot is enough, because a
// container that reuses the slots of a larger init container has only some of them. The caller must hold mu.
func (t *Table) holder(g Grant) *allocation.Allocated {
	for _, id := range g.Slots {
		if h := t.listed[id]; h != nil {
			return h
		}
	}
	return nil
}

// complete adds a grant for each resource of a listed container that has no grant of this resource. The caller
// must hold mu.
func (t *Table) complete(grants []Grant, s allocation.State, count int) []Grant {
	for _, h := range s.Allocated {
		for _, r := range []gpu.Resource{gpu.Memory, gpu.Cores} {
			slots := slices.Sorted(slices.Values(h.SlotsOf(r)))
			settled := func(g Grant) bool {
				return slices.Equal(g.Slots, slots) || g.number > count && g.overlaps(Grant{Slots: slots})
			}
			if len(slots) == 0 || slices.ContainsFunc(grants, settled) {
				continue
			}
			environment, err := allocation.Resolve(s, r, slots)
			if _, out := errors.AsType[*gpu.OutOfUse](err); err != nil && !out {
				continue // the GPU is gone
			}
			to := placement.PodRef{Namespace: h.Namespace, Name: h.Name, UID: admitted(s, h)}
			g := NewGrant(allocation.Attributed{Pod: to, Container: placement.Container{Name: h.Container, Kind: placement.App}}, environment, s.Inventory, nil)
			former := t.formerOf(slots)
			g.Level, g.MPS = former.Level, former.MPS
			grants = append(grants, g)
		}
	}
	return grants
}

// admitted returns the UID of the pod that an entry of the kubelet's list belongs to. The UID is empty if the
// kubelet may not have admitted the pod yet, because the entry may then belong to a deleted pod of the same
// name.
func admitted(s allocation.State, h allocation.Allocated) string {
	for _, pod := range s.Pods {
		if h.BelongsTo(pod.Pod) && pod.Admitted {
			return pod.Pod.UID
		}
	}
	return ""
}

// Prune drops the grants with numbers up to `count` for which `inUse` returns false. Newer grants stay, because their
// pods may be newer than the list of pods that `inUse` reads. The argument `listed` of `inUse` reports whether the
// kubelet lists the grant's first slot. It can be false for an init container's grant although the kubelet lists other
// slots of the grant (see holder).
func (t *Table) Prune(count int, inUse func(g Grant, listed bool) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.Grants = slices.DeleteFunc(slices.Clone(t.state.Grants), func(g Grant) bool {
		return g.number <= count && !inUse(g, t.listed[g.Slots[0]] != nil)
	})
}

// FormerLevel returns the weakest level and the highest MPS protocol that version 0.2 recorded for the slots.
// Both are empty if version 0.2 recorded nothing for one of the slots.
func (t *Table) FormerLevel(slots ...gpu.SlotID) (out Former) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.formerOf(slots)
}

// formerOf implements FormerLevel. The caller must hold mu.
func (t *Table) formerOf(slots []gpu.SlotID) (out Former) {
	for i, id := range slots {
		candidate, ok := t.state.Former[id]
		if !ok {
			return Former{}
		}
		if candidate.Level = cmp.Or(candidate.Level, gpu.EnforcementAdvisory); i == 0 || !candidate.Level.AtLeast(out.Level) {
			out.Level = candidate.Level
		}
		out.MPS = max(out.MPS, candidate.MPS)
	}
	return out
}

// CheckLock blocks while the lock is held. A liveness check that times out in CheckLock has found a deadlock.
func (t *Table) CheckLock() {
	t.mu.Lock()
	defer t.mu.Unlock()
}
