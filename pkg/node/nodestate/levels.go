package nodestate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/atomicfile"
	"github.com/gpumem/gpumem/pkg/node/mps"
)

// levels remembers at which level slots were handed out. It is written down: what a container was
// given then remains in its environment for as long as it has the slots, and what is written of its
// pod may be another level, that of the node when the pod was bound.
type levels struct {
	file string     // empty: it is not written down
	save sync.Mutex // one change at a time, and in order

	mu sync.Mutex // guards of
	of map[gpu.SlotID]handed
}

// handed is how a slot was handed out.
type handed struct {
	Level gpu.Enforcement `json:"level"`
	MPS   int             `json:"mps,omitempty"` // protocol of the daemon that the container is a client of; 0: of none
}

// readLevels reads what the process before has written.
func readLevels(file string, log *zap.Logger) *levels {
	l := &levels{file: file, of: make(map[gpu.SlotID]handed)}
	if file == "" {
		return l
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return l
	}
	if err == nil {
		err = json.Unmarshal(data, &l.of)
	}
	if err != nil {
		log.Warn("levels that were handed out are not known: what is written of pods counts", zap.String("file", file), zap.Error(err))
	}
	if err != nil || l.of == nil { // it says null
		l.of = make(map[gpu.SlotID]handed)
	}
	return l
}

// set remembers how slots were handed out.
func (l *levels) set(slots []gpu.SlotID, now handed) error {
	l.save.Lock()
	defer l.save.Unlock()
	if !l.change(slots, now) || l.file == "" {
		return nil
	}
	if err := atomicfile.WriteJSON(l.file, l.of, 0o600); err != nil { // which only a change alters
		return fmt.Errorf("write down levels: %w", err)
	}
	return nil
}

func (l *levels) change(slots []gpu.SlotID, now handed) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range slots {
		if l.of[id] != now {
			l.of[id], changed = now, true
		}
	}
	return changed
}

// weakest returns the weakest level of some slots and the protocol of MPS. Both are empty if the level
// of one of the slots was not recorded.
func (l *levels) weakest(slots []gpu.SlotID) (out handed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out.Level = gpu.EnforcementKernel
	for _, id := range slots {
		one, ok := l.of[id]
		if !ok {
			return handed{}
		}
		if !one.Level.AtLeast(out.Level) {
			out.Level = one.Level
		}
		out.MPS = one.MPS
	}
	return out
}

// HandOut remembers at which level of an inventory slots are handed out, also for the process after
// this one.
func (n *State) HandOut(slots []gpu.SlotID, inv gpu.Inventory) {
	now := handed{Level: cmp.Or(inv.Enforcement, gpu.EnforcementAdvisory)}
	if inv.MPS {
		now.MPS = mps.Protocol
	}
	if err := n.levels.set(slots, now); err != nil {
		n.log.Warn("levels are not known after a restart", zap.Error(err))
	}
}

// LevelOfSlots returns the weakest level at which slots were handed out; empty when one is not
// remembered.
func (n *State) LevelOfSlots(slots []gpu.SlotID) gpu.Enforcement {
	given := n.levels.weakest(slots)
	return given.Level
}

// MPSOfSlots returns the protocol of the MPS daemon whose client the container with these slots was
// made. It is 0 for no client, and where the level record lacks one of the slots.
func (n *State) MPSOfSlots(slots ...gpu.SlotID) (protocol int) {
	given := n.levels.weakest(slots)
	return given.MPS
}

// RetiredClients returns the pods on each GPU that version 0.2 made clients of an MPS protocol which gpumem no longer
// runs. The map has the kubelet's device IDs of the resource, each with its pod.
func (n *State) RetiredClients(inv gpu.Inventory, held map[string]string) map[gpu.UUID][]string {
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		return nil // nothing of such a node is offered
	}
	out := make(map[gpu.UUID][]string)
	for id, pod := range held {
		device, err := slots.Device(gpu.SlotID(id))
		if err != nil || mps.CheckProtocol(n.MPSOfSlots(gpu.SlotID(id))) == nil {
			continue
		}
		if !slices.Contains(out[device.UUID], pod) {
			out[device.UUID] = append(out[device.UUID], pod)
		}
	}
	return out
}

// LevelOf returns the level at which the pod was given what it holds: as
// remembered, or else as it is written.
func (n *State) LevelOf(s allocation.State, pod allocation.Pod) gpu.Enforcement {
	var slots []gpu.SlotID
	for _, h := range s.Allocated {
		if h.Of(pod.Pod) {
			slots = append(slots, h.Only(gpu.Memory)...)
		}
	}
	if level := n.LevelOfSlots(slots); level != "" && len(slots) > 0 {
		return level
	}
	return pod.Assignment.Enforcement
}
