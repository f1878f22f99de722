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

// event is an error that NVML reports of a GPU, or its wish that we look.
type event struct {
	uuid   gpu.UUID
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
	uuids  map[nvml.Device]gpu.UUID
}

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
	uuids := make(map[nvml.Device]gpu.UUID)
	for _, r := range readings {
		if r.failed == "" && !r.mig {
			uuids[r.handle] = r.device.UUID
		}
	}
	if p.watcher != nil && !p.watcher.ended() && maps.Equal(p.watcher.uuids, uuids) {
		return
	}
	p.unwatch()
	if len(uuids) == 0 || p.calls.anyHanging("events") {
		return
	}
	w := &watcher{events: make(chan event), done: make(chan struct{}), quit: make(chan struct{}), uuids: uuids}
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
	for handle, uuid := range w.uuids {
		if ret := handle.RegisterEvents(supported(handle), set); ret != nvml.SUCCESS {
			log.Debug("no events from GPU", zap.String("device", string(uuid)), zap.String("reason", ret.Error()))
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
			w.tell(e.Device, "double-bit ECC error")
		case e.EventType != nvml.EventTypeXidCriticalError:
		case slices.Contains(ignore, e.EventData):
			log.Info("XID of a program", zap.String("device", string(w.uuids[e.Device])), zap.Uint64("xid", e.EventData))
		default:
			w.tell(e.Device, xidReason(e.EventData))
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

// tell reports what has happened to a GPU. One that is not known is looked for.
func (w *watcher) tell(device nvml.Device, reason string) {
	if uuid, ok := w.uuids[device]; ok {
		w.send(event{uuid: uuid, reason: reason})
		return
	}
	w.send(event{probe: true})
}

func (w *watcher) send(e event) {
	select {
	case w.events <- e:
	case <-w.quit:
	}
}
