package main

import (
	"context"
	"path/filepath"

	"github.com/gpumem/gpumem/pkg/node/checkpoint"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/report/metrics"
)

// byResource returns the allocator of the extended resource: the kubelet's device plugin.
func byResource(n *node) allocator {
	n.pods.InShares(n.inShares())
	dir := filepath.Join(n.kubeletDir, "device-plugins")
	cfg := n.config.plugin
	cfg.Ready, cfg.Kernel, cfg.Cordoned = n.level.Ready, n.level, n.object.Cordoned
	cfg.Record = checkpoint.File(filepath.Join(dir, "gpumem-grants.json")) // goes with the kubelet's checkpoint
	cfg.Former = filepath.Join(dir, "gpumem-levels.json")
	measured := metrics.NewDevicePlugin(n.registry)
	p := deviceplugin.New(cfg, n.level, n.pods, n.kubelet, n.events, measured, n.log.Named("plugin"))
	memory := deviceplugin.NewRunner(dir, n.resource(), p.Server, n.log.Named("runner"))
	memory.Answered, memory.TakeOver, memory.GiveWay = measured.Answered, p.State.Load, p.State.GiveWay
	a := allocator{
		offers: p.Offers, inventory: p.Offers.Inventory, account: p.State.Allocations, retired: p.State.RetiredClients,
		containers: p.Containers, holders: n.pods, grants: p.Containers, alive: p.Alive,
		listed: []<-chan struct{}{memory.Listed()},
		checks: []serve.Check{{Name: "kubelet", Missing: memory.Missing}},
		runs: []func(context.Context) error{
			p.Announcer.Announce, p.Announcer.AnnounceHealth, p.Reconciler.Run,
			after(offered(p, memory), n.level.Looked()),
		},
		// Pods that are not listed yet may hold some.
		allocated: func() (int, <-chan struct{}) {
			pods, complete, changed := n.pods.Pods()
			if !complete {
				return 1, changed
			}
			return len(pods), changed
		},
		// A kubelet that has read no devices needs none of them withdrawn.
		leave: func(ctx context.Context) {
			select {
			case <-memory.Listed():
				p.Announcer.Leave(ctx, n.object.Withdraw)
			default:
			}
		},
	}
	if n.cores {
		cores := deviceplugin.NewRunner(dir, string(n.names.GPUCore()), p.Server.Cores(), n.log.Named("runner"))
		cores.Answered, cores.TakeOver = measured.Answered, p.State.Loaded
		a.listed = append(a.listed, cores.Listed())
		a.checks = append(a.checks, serve.Check{Name: "kubelet, gpu-core", Missing: cores.Missing})
		a.runs = append(a.runs, after(offered(p, cores), n.level.Looked()))
	}
	return a
}

// offered registers a resource once the node has had a GPU. Of a resource that is registered and
// has no device the kubelet fails pods that name 0 of it, as a LimitRange has them do
// (k8s.io/kubernetes/pkg/kubelet/cm/devicemanager, devicesToAllocate); one that it does not know it
// leaves alone.
func offered(p deviceplugin.Plugin, r *deviceplugin.Runner) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			inv, changed := p.Offers.Inventory()
			if len(inv.Devices) > 0 {
				return r.Run(ctx)
			}
			r.Idle()
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			}
		}
	}
}
