package nvml

import (
	"maps"
	"slices"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// eventWaitMS bounds one wait for an event, and so the time to stop.
const eventWaitMS = 1000

// event is an error that NVML reports of a GPU, or its wish that we look.
type event struct {
	uuid  gpu.UUID
	xid   uint64
	probe bool
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
	if len(uuids) == 0 || p.anyHanging("events") {
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
		p.hanging["events"] = w.done
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
		if ret := handle.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
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
		case e.EventType != nvml.EventTypeXidCriticalError:
		case slices.Contains(ignore, e.EventData):
			log.Info("XID of a program", zap.String("device", string(w.uuids[e.Device])), zap.Uint64("xid", e.EventData))
		default:
			if uuid, ok := w.uuids[e.Device]; ok {
				w.send(event{uuid: uuid, xid: e.EventData})
			} else {
				w.send(event{probe: true})
			}
		}
	}
}

func (w *watcher) send(e event) {
	select {
	case w.events <- e:
	case <-w.quit:
	}
}
