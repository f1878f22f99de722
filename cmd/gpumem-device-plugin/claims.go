package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/coexist"
	"github.com/gpumem/gpumem/pkg/node/enforcement"
	"github.com/gpumem/gpumem/pkg/node/inventory"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/nodepods"
	"github.com/gpumem/gpumem/pkg/node/nodestate"
	"github.com/gpumem/gpumem/pkg/node/nri"
	"github.com/gpumem/gpumem/pkg/node/nvml"
	"github.com/gpumem/gpumem/pkg/node/podresources"
	"github.com/gpumem/gpumem/pkg/node/usage"
	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/report/metrics"
)

// startClaims serves a node by claims until the context is done.
func startClaims(ctx context.Context, log *zap.Logger, cfg config, client kubernetes.Interface, disk claims.Disk, prepared map[types.UID]claims.Claim, node types.UID, published func(context.Context) gpu.Inventory, other func(label string) bool) (err error) {
	kubelet, err := podresources.New(filepath.Join(cfg.kubeletDir, "pod-resources", "kubelet.sock"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kubelet.Close()) }()
	ctx, end := context.WithCancel(ctx)
	defer end()
	group, ctx := errgroup.WithContext(ctx)
	events, err := nodepods.NewEvents(ctx, client, "gpumem-device-plugin", cfg.nodeName)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.probeListen)
	if err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	object := nodepods.NewNode(client, cfg.names, cfg.nodeName, log.Named("node"))
	object.Serve(api.ByClaims, cfg.apis())
	prober := newProber(log, cfg, published)
	var source inventory.Source = prober
	described := cfg.describer(log, prober)
	if described != nil {
		source = described
	}
	ours := coexist.NewNode(cfg.devices, string(cfg.names.GPUMem()), usersInterval, source, kubelet, events, log.Named("coexist"))
	ours.Continue(published)
	ours.Heed(coexist.NewPublished(client, cfg.nodeName, cfg.names.Domain()))
	var asks *nri.Plugin // nil where the runtime is not to call us
	level := newLevel(log, cfg, ours, func() error { return connected(asks) }, func() error { return late(asks) })
	offers := nodestate.NewOffers(level, !cfg.cores)
	driver := claims.New(claims.Config{
		Domain: cfg.names.Domain(), Node: cfg.nodeName, Cores: cfg.cores, Containers: cfg.plugin.Containers,
		Ready: level.Ready,
	}, offers, disk, prepared, log.Named("claims"))
	ours.Retire(driver.RetiredClients)
	pods := nodepods.NewPods(client, cfg.names, cfg.nodeName, log.Named("pods"))
	pods.ByClaims()
	users := claims.NewUsers(pods, driver)
	if cfg.nriSocket != "" {
		asks = nri.New(cfg.nriSocket, driver.Containers(level, users), log.Named("nri"))
		group.Go(func() error { return when(ctx, level.Looked(), func() error { return asks.Run(ctx) }) })
	}
	runner := claims.NewRunner(driver, client, cfg.kubeletRootDir, node, closedBy(object), log.Named("claims"))
	used := usage.New(cfg.toleranceMiB, prober, usage.Proc{Root: "/proc"}, users, users, events, cfg.evictor(client, nil), log.Named("usage"))
	used.Record(nodepods.NewUses(client, cfg.names))
	registry := metrics.NewRegistry(version)
	metrics.RegisterGPUs(registry, gpus{level, prober})
	used.Except(func(ctx context.Context) (map[int]bool, error) { return mps.Servers(ctx, cfg.mpsDir) })
	metrics.RegisterContainers(registry, used.Samples, used.ServerMemory)
	p := claimsParts{prober: prober, ours: ours, level: level, offers: offers, driver: driver, runner: runner, object: object, pods: pods, usage: used}
	if described != nil {
		group.Go(func() error { return described.Run(ctx) })
	}
	for _, run := range p.runs(listener, metrics.Handler(registry)) {
		group.Go(func() error { return run(ctx) })
	}
	group.Go(func() error {
		defer end()
		<-until(ctx, log, object, other, driver.Prepared)
		return nil
	})
	log.Info("serving claims", zap.Stringer("probes", listener.Addr()))
	err = group.Wait()
	log.Info("stopped", zap.Error(err))
	return err
}

// inventory returns the node's GPUs as those see them that place pods by the extended resource.
func (p claimsParts) inventory() (gpu.Inventory, <-chan struct{}) {
	inv, changed := p.offers.Inventory()
	for i := range inv.Devices {
		inv.Devices[i].Status.ByClaims = true
	}
	return inv, changed
}

// closedBy returns which GPUs people keep new claims off: all, where the node is to have none.
func closedBy(object *nodepods.Node) claims.Closed {
	return func() (ids []gpu.UUID, all bool, changed <-chan struct{}) {
		said, changed := object.Said()
		return said.Cordoned, said.API != api.ByClaims, changed
	}
}

// claimsParts are what the process is made of that serves claims.
type claimsParts struct {
	prober *nvml.Prober
	ours   *coexist.Node
	level  *enforcement.Node
	offers *nodestate.Offers
	driver *claims.Driver
	runner *claims.Runner
	object *nodepods.Node
	pods   *nodepods.Pods
	usage  *usage.Watch
}

// runs returns what is to run, each until its context is done.
func (p claimsParts) runs(listener net.Listener, measured http.Handler) []func(context.Context) error {
	after := func(ready <-chan struct{}, run func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			return when(ctx, ready, func() error { return run(ctx) })
		}
	}
	probes := serve.Probes(version, measured, p.offers.Alive, serve.Check{Name: "claims", Missing: p.runner.Missing}, serve.Check{Name: "inventory", Missing: p.object.Missing})
	return []func(context.Context) error{
		p.prober.Run,
		after(p.prober.Probed(), p.ours.Run),
		after(p.ours.Looked(), p.level.Run),
		p.pods.Run,
		p.usage.Run,
		after(p.object.Read(), p.runner.Run), // a GPU that is cordoned is published as such at once
		after(p.level.Looked(), func(ctx context.Context) error { return p.object.Run(ctx, p.inventory, p.driver.Allocations) }),
		func(ctx context.Context) error { return serve.Run(ctx, listener, probes) },
	}
}
