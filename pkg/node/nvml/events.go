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

// eventWaitMS bounds one wait for an event, and so the time to stop.
const eventWaitMS = 1000

// event is an error that NVML reports of a GPU or of its MIG instances, or its wish that we look.
type event struct {
	uuids  []gpu.UUID
	reason string
	probe  bool
}

// failures are the events that say that a GPU has failed. A fault of an NVLink
// comes as an XID.
const failures = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError

// meanings are what NVIDIA says of XIDs that a GPU itself is the cause of ("Xid
// Errors").
func meanings() map[uint64]string {
	return map[uint64]string{
		48: "double-bit ECC error", 62: "internal micro-controller halt", 63: "row remapping event", 64: "row remapping failure",
		74: "NVLink error", 79: "the GPU has fallen off the bus", 92: "high rate of single-bit ECC errors", 94: "contained ECC error",
		95: "uncontained ECC error", 119: "GSP firmware does not answer", 120: "GSP firmware error", 140: "unrecovered ECC error",
	}
}

// xidReason says why a GPU is not healthy after an XID.
func xidReason(xid uint64) string {
	if meaning, ok := meanings()[xid]; ok {
		return fmt.Sprintf("XID %d: %s", xid, meaning)
	}
	return fmt.Sprintf("XID %d", xid)
}

// watcher waits for NVML's events in a goroutine of its own, for the waiting is
// done in C.
type watcher struct {
	events chan event // closed at the end
	done   chan struct{}
	quit   chan struct{}
	of     map[nvml.Device][]source
}

// A source is a device that the events of a GPU's handle may be of: the GPU, or a MIG instance of it.
type source struct {
	uuid gpu.UUID
	id   uint32 // of the GPU instance
}

// wholeGPU is the instance in an event that is of none (NVML, nvmlEventData_t).
const wholeGPU = 0xFFFFFFFF

func (w *watcher) ended() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// watch sees to it that a watcher runs for all GPUs that answered.
func (p *Prober) watch(s *session, readings []reading) {
	of := make(map[nvml.Device][]source)
	for _, r := range readings {
		if r.failed == "" && r.instance == nil && !r.mig {
			of[r.handle] = []source{{r.device.UUID, wholeGPU}}
		}
		for _, i := range r.instances {
			if i.failed == "" {
				of[r.handle] = append(of[r.handle], source{i.device.UUID, i.instance.id})
			}
		}
	}
	if p.watcher != nil && !p.watcher.ended() && maps.EqualFunc(p.watcher.of, of, slices.Equal) {
		return
	}
	p.unwatch()
	if len(of) == 0 || p.calls.anyHanging("events") {
		return
	}
	w := &watcher{events: make(chan event), done: make(chan struct{}), quit: make(chan struct{}), of: of}
	p.watcher = w
	go func() {
		defer close(w.done)
		defer close(w.events)
		w.run(s, p.cfg.IgnoreXIDs, p.log)
	}()
}

// unwatch ends the watcher and waits for it, but not for ever.
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
		p.calls.hanging["events"] = w.done
	}
}

func (w *watcher) run(s *session, ignore []uint64, log *zap.Logger) {
	set, ret := s.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		log.Debug("no events from NVML", zap.String("reason", ret.Error()))
		<-w.quit
		return
	}
	defer func() { _ = set.Free() }() // the session ends: nothing is lost
	for handle, of := range w.of {
		if ret := handle.RegisterEvents(supported(handle), set); ret != nvml.SUCCESS {
			log.Debug("no events from GPU", zap.Any("devices", devices(of, wholeGPU)), zap.String("reason", ret.Error()))
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
		case ret != nvml.SUCCESS: // a GPU is lost, or the driver: the next session tells
			w.send(event{probe: true})
			return
		case e.EventType == nvml.EventTypeDoubleBitEccError:
			w.tell(e, "double-bit ECC error")
		case e.EventType != nvml.EventTypeXidCriticalError:
		case slices.Contains(ignore, e.EventData):
			log.Info("XID of a program", zap.Any("devices", devices(w.of[e.Device], e.GpuInstanceId)), zap.Uint64("xid", e.EventData))
		default:
			w.tell(e, xidReason(e.EventData))
		}
	}
}

// supported returns which of the failures a GPU can tell of.
func supported(handle nvml.Device) uint64 {
	if types, ret := handle.GetSupportedEventTypes(); ret == nvml.SUCCESS {
		return types & failures
	}
	return nvml.EventTypeXidCriticalError
}

// tell reports what has happened to a GPU. One that is not known, or an instance, is looked for.
func (w *watcher) tell(e nvml.EventData, reason string) {
	if ids := devices(w.of[e.Device], e.GpuInstanceId); len(ids) > 0 {
		w.send(event{uuids: ids, reason: reason})
		return
	}
	w.send(event{probe: true})
}

// devices returns those that an event is of: all of its GPU's, unless it names a MIG instance.
func devices(of []source, id uint32) (out []gpu.UUID) {
	for _, s := range of {
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
