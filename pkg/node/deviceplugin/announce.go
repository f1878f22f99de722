package deviceplugin

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// Announcer records events about failures of the node's GPUs, and withdraws the node at the end. Package nodeapi
// writes the node's annotation and condition.
type Announcer struct {
	node   string
	offers *grants.Offers
	source inventory.Source
	pods   grants.Pods
	events event.Events
	log    *zap.Logger
}

// Announce logs each reason why the node cannot offer its GPUs, and records it as an event on the node, until
// the context is done.
func (a *Announcer) Announce(ctx context.Context) error {
	for said := ""; ; {
		o, changed := a.offers.Current()
		if o.Refused && o.Reason != said {
			a.log.Error("nothing is offered", zap.String("node", a.node), zap.String("reason", o.Reason))
			a.events.Node(event.NotOffered, o.Reason)
		}
		said = o.Reason
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// AnnounceHealth records an event on the node when a GPU fails or recovers, until the context is done.
func (a *Announcer) AnnounceHealth(ctx context.Context) error {
	reported := make(map[gpu.UUID]announced) // GPUs that accept no new pods
	for {
		inv, _, changed := a.source.Inventory()
		var retry <-chan time.Time
		for _, d := range inv.Devices {
			if a.announceHealth(d, reported) {
				retry = time.After(reasonInterval)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-retry:
		}
	}
}

// reasonInterval is the minimum time between two events for a GPU if only its reason changes. The reason can
// contain a program's output.
const reasonInterval = 5 * time.Minute

type announced struct {
	status     gpu.Status
	reportedAt time.Time
}

// announceHealth records an event if the health of a GPU has changed. It returns true if the event must wait
// for reasonInterval.
func (a *Announcer) announceHealth(d gpu.Device, reported map[gpu.UUID]announced) (later bool) {
	last, failed := reported[d.UUID]
	was := last.status
	sameWithout := was
	sameWithout.Reason = d.Status.Reason
	switch {
	case d.Status.TakesPods() && failed:
		delete(reported, d.UUID)
		a.events.Node(event.Healthy, fmt.Sprintf("GPU %d (%s) is healthy again and takes pods; it was not: %s", d.Index, d.UUID, reasons.Causes(was)))
	case !d.Status.TakesPods() && was != d.Status && failed && sameWithout == d.Status && time.Since(last.reportedAt) < reasonInterval:
		return true
	case !d.Status.TakesPods() && was != d.Status:
		reported[d.UUID] = announced{d.Status, time.Now()}
		a.events.Node(event.Unhealthy, fmt.Sprintf("GPU %d (%s) is not healthy and takes no new pods: %s", d.Index, d.UUID, reasons.Causes(d.Status)))
		a.reportToPods(d)
	}
	return false
}

// reportToPods records an event on each pod of a failed GPU.
func (a *Announcer) reportToPods(d gpu.Device) {
	pods, _, _ := a.pods.Pods()
	for _, pod := range pods {
		for _, id := range pod.Assignment.Devices() {
			if id == d.UUID {
				a.events.Pod(pod.Pod, event.LostGPU, fmt.Sprintf("its GPU %d (%s) is not healthy: %s; delete the pod to have it placed on another GPU, if it fits on one", d.Index, d.UUID, reasons.Causes(d.Status)))
			}
		}
	}
	a.log.Debug("health announced", zap.String("node", a.node), zap.String("device", string(d.UUID)))
}
