package nvml

import (
	"fmt"
	"maps"
	"slices"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// eventWaitMS bounds one wait for an event, and therefore the time that a watcher takes to stop.
const eventWaitMS = 1000

// event is an error that NVML reports for GPUs or MIG instances, or a request to probe now.
type event struct {
	uuids  []gpu.UUID
	reason string
	reset  bool // the GPUs need a reset
	probe  bool
}

// failures are the event types of a failed GPU. NVLink faults arrive as XIDs.
const failures = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError

// applicationXIDs returns the errors after which NVIDIA's XID catalog requires only a restart of the program,
// or no action.
func applicationXIDs() []uint64 {
	return []uint64{
		8, 11, 13, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 60, 63, 66, 67, 68, 69, 70, 71, 72, 73, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89,
		92, 93, 94, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107, 108, 121, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 137, 139,
		141, 142, 152, 153, 157, 160, 161,
	}
}

// recoveryActionChanged is the XID that announces a new recovery action of the GPU (session.recovery).
const recoveryActionChanged = 154

// resetXIDs returns the errors after which the catalog requires a reset of the GPU or a reboot of the machine.
func resetXIDs() map[uint64]string {
	return map[uint64]string{
		46: "GPU stopped processing", 62: "internal micro-controller halt", 64: "row remapping failure", 79: "the GPU has fallen off the bus",
		95: "uncontained ECC error", 109: "context switch timeout", 110: "security fault", 119: "GSP firmware does not answer",
		120: "GSP firmware error", 136: "link training failed", 140: "unrecovered ECC error", 143: "GPU initialization failed",
		151: "key rotation error", 155: "NVLink error", 156: "resource retirement", 158: "fatal timeout",
	}
}

// meanings returns the names of other errors. After such an error, good probes make the GPU healthy again.
func meanings() map[uint64]string {
	return map[uint64]string{48: "double-bit ECC error", 74: "NVLink error"}
}

// xidEvent returns the reason for an XID, and whether the GPU needs a reset.
func xidEvent(xid uint64) (reason string, reset bool) {
	if meaning, ok := resetXIDs()[xid]; ok {
		return fmt.Sprintf("XID %d: %s: it %s", xid, meaning, needsReset), true
	}
	if meaning, ok := meanings()[xid]; ok {
		return fmt.Sprintf("XID %d: %s", xid, meaning), false
	}
	return fmt.Sprintf("XID %d", xid), false
}

// watcher waits for NVML's events in a separate goroutine, because the wait blocks in C.
type watcher struct {
	events  chan event // closed when the watcher ends
	done    chan struct{}
	quit    chan struct{}
	sources map[nvml.Device][]source
}

// source is a possible origin of an event on a GPU's handle: the GPU, or one of its MIG instances.
type source struct {
	uuid gpu.UUID
	id   uint32 // ID of the GPU instance; wholeGPU for a GPU
}

// wholeGPU is the instance ID in events that concern the whole GPU (NVML, nvmlEventData_t).
const wholeGPU = 0xFFFFFFFF

func (w *watcher) hasEnded() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// watch ensures that a watcher runs for all GPUs that answered.
func (p *Prober) watch(s *session, readings []reading) {
	sources := make(map[nvml.Device][]source)
	for _, r := range readings {
		if r.failed == "" && r.instance == nil && !r.mig {
			sources[r.handle] = []source{{r.device.UUID, wholeGPU}}
		}
		for _, i := range r.instances {
			if i.failed == "" {
				sources[r.handle] = append(sources[r.handle], source{i.device.UUID, i.instance.id})
			}
		}
	}
	if p.watcher != nil && !p.watcher.hasEnded() && maps.EqualFunc(p.watcher.sources, sources, slices.Equal) {
		return
	}
	p.unwatch()
	if len(sources) == 0 || p.calls.anyHanging("events") {
		return
	}
	w := &watcher{events: make(chan event), done: make(chan struct{}), quit: make(chan struct{}), sources: sources}
	p.watcher = w
	go func() {
		defer close(w.done)
		defer close(w.events)
		w.run(s, p.cfg.IgnoreXIDs, p.log)
	}()
}

// unwatch stops the watcher, and waits for its end up to Config.Timeout.
func (p *Prober) unwatch() {
	w := p.watcher
	if w == nil {
		return
	}
	p.watcher = nil
	close(w.quit)
	select {
	case <-w.done:
	case <-time.After(p.cfg.Timeout):
		p.calls.pending["events"] = &pending{done: w.done}
	}
}

func (w *watcher) run(s *session, ignore []uint64, log *zap.Logger) {
	set, ret := s.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		log.Debug("no events from NVML", zap.String("reason", ret.Error()))
		<-w.quit
		return
	}
	defer func() { _ = set.Free() }() // the session ends in any case
	for handle, sources := range w.sources {
		if ret := handle.RegisterEvents(supported(handle), set); ret != nvml.SUCCESS {
			log.Debug("no events from GPU", zap.Any("devices", devices(sources, wholeGPU)), zap.String("reason", ret.Error()))
		}
	}
	for {
		select {
		case <-w.quit:
			return
		default:
		}
		e, ret := set.Wait(eventWaitMS)
		switch {
		case ret == nvml.ERROR_TIMEOUT:
		case ret != nvml.SUCCESS: // a GPU or the driver is lost; the next session reports which
			w.send(event{probe: true})
			return
		case e.EventType == nvml.EventTypeDoubleBitEccError:
			w.sendEvent(e, "double-bit ECC error", false)
		case e.EventType != nvml.EventTypeXidCriticalError:
		case e.EventData == recoveryActionChanged:
			w.send(event{probe: true})
		case slices.Contains(ignore, e.EventData), slices.Contains(applicationXIDs(), e.EventData):
			log.Info("XID of a program", zap.Any("devices", devices(w.sources[e.Device], e.GpuInstanceId)), zap.Uint64("xid", e.EventData))
		default:
			reason, reset := xidEvent(e.EventData)
			w.sendEvent(e, reason, reset)
		}
	}
}

// supported returns the event types of constant failures that a GPU supports.
func supported(handle nvml.Device) uint64 {
	if types, ret := handle.GetSupportedEventTypes(); ret == nvml.SUCCESS {
		return types & failures
	}
	return nvml.EventTypeXidCriticalError
}

// sendEvent sends an event for the devices of e. For an unknown GPU or instance it requests a probe instead.
func (w *watcher) sendEvent(e nvml.EventData, reason string, reset bool) {
	instance := e.GpuInstanceId
	if reset {
		instance = wholeGPU // a reset ends all instances
	}
	if ids := devices(w.sources[e.Device], instance); len(ids) > 0 {
		w.send(event{uuids: ids, reason: reason, reset: reset})
		return
	}
	w.send(event{probe: true})
}

// devices returns the UUIDs that an event concerns: all sources of its GPU, or the MIG instance that it names.
func devices(sources []source, id uint32) (out []gpu.UUID) {
	for _, s := range sources {
		if id == wholeGPU || s.id == wholeGPU || s.id == id {
			out = append(out, s.uuid)
		}
	}
	return out
}

func (w *watcher) send(e event) {
	select {
	case w.events <- e:
	case <-w.quit:
	}
}
