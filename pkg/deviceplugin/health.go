package deviceplugin

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// AnnounceHealth says on the node when a GPU fails and when it is back. It
// returns when the context is done.
func (p *Plugin) AnnounceHealth(ctx context.Context) error {
	told := make(map[gpu.UUID]gpu.Status) // of those that take no new pods
	for {
		inv, _, changed := p.prober.Inventory()
		for _, d := range inv.Devices {
			p.announceHealth(d, told)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (p *Plugin) announceHealth(d gpu.Device, told map[gpu.UUID]gpu.Status) {
	was, failed := told[d.UUID]
	switch {
	case d.Status.TakesPods() && failed:
		delete(told, d.UUID)
		p.events.Node(false, "GPUHealthy", fmt.Sprintf("GPU %d (%s) is healthy again and takes pods; it was not: %s", d.Index, d.UUID, was.Causes()))
	case !d.Status.TakesPods() && was != d.Status:
		told[d.UUID] = d.Status
		p.events.Node(true, "GPUUnhealthy", fmt.Sprintf("GPU %d (%s) is not healthy and takes no new pods: %s", d.Index, d.UUID, d.Status.Causes()))
		p.tellPods(d)
	}
}

// tellPods tells the pods on a GPU that it has failed.
func (p *Plugin) tellPods(d gpu.Device) {
	pods, _, _ := p.pods.Pods()
	for _, pod := range pods {
		for _, id := range pod.Assignment.Devices() {
			if id == d.UUID {
				p.events.Pod(pod.Pod, true, "GPUUnhealthy", fmt.Sprintf("its GPU %d (%s) is not healthy: %s; made anew, by its controller or by hand, the pod is placed on another, if one that it may use has room", d.Index, d.UUID, d.Status.Causes()))
			}
		}
	}
	p.log.Debug("health announced", zap.String("node", p.cfg.Node), zap.String("device", string(d.UUID)))
}
