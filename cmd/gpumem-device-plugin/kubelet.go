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
	n.pods.SelectShares(n.inShares())
	dir := filepath.Join(n.kubeletDir, "device-plugins")
	cfg := n.config.plugin
	cfg.Ready, cfg.Kernel, cfg.Cordoned = n.level.Ready, n.level, n.object.Cordoned
	cfg.Record = checkpoint.File(filepath.Join(dir, "gpumem-grants.json")) // removed together with the kubelet's checkpoint
	cfg.Former = filepath.Join(dir, "gpumem-levels.json")
	measured := metrics.NewDevicePlugin(n.registry)
	p := deviceplugin.New(cfg, n.level, n.pods, n.kubelet, n.events, measured, n.log.Named("plugin"))
	endpoints := []deviceplugin.Endpoint{{Resource: n.resource(), Plugin: p.Server}}
	if n.cores {
		endpoints = append(endpoints, deviceplugin.Endpoint{Resource: string(n.names.GPUCore()), Plugin: p.Server.Cores()})
	}
	runner := deviceplugin.NewRunner(dir, n.log.Named("runner"), endpoints...)
	runner.Answered, runner.TakeOver, runner.GiveWay = measured.Answered, p.State.Load, p.State.GiveWay
	return allocator{
		offers: p.Offers, inventory: p.Offers.Inventory, account: p.State.Allocations, retired: p.State.RetiredClients,
		containers: p.Containers, holders: n.pods, grants: p.Containers, alive: p.CheckLocks,
		listed: []<-chan struct{}{runner.Listed()},
		checks: []serve.Check{{Name: "kubelet", Missing: runner.Missing}},
		runs: []func(context.Context) error{
			p.Announcer.Announce, p.Announcer.AnnounceHealth, p.Reconciler.Run,
			runAfter(offered(p, runner), n.level.Looked()),
		},
		// The number is not 0 while the list of pods is incomplete, because a missing pod may hold GPU memory.
		allocated: func() (int, <-chan struct{}) {
			pods, complete, changed := n.pods.Pods()
			if !complete {
				return 1, changed
			}
			return len(pods), changed
		},
		// If the kubelet has read no devices, none need to be withdrawn.
		leave: func(ctx context.Context) {
			select {
			case <-runner.Listed():
				p.Announcer.Shutdown(ctx, n.object.Withdraw)
			default:
			}
		},
	}
}

// offered registers the resources once the node has had a GPU. For a registered resource without devices, the
// kubelet fails pods that request 0 of it, as a LimitRange can make them do
// (k8s.io/kubernetes/pkg/kubelet/cm/devicemanager, devicesToAllocate). The kubelet ignores unregistered
// resources.
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
