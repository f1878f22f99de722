package main

import (
	"context"
	"net"
	"net/http"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/nodepods"
	"github.com/gpumem/gpumem/pkg/process/serve"
)

// runs returns what is to run, each until its context is done.
func (p *parts) runs(probes net.Listener) []func(context.Context) error {
	after := func(ready <-chan struct{}, run func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			return when(ctx, ready, func() error { return run(ctx) })
		}
	}
	// What speaks of GPUs waits until they have been looked for, and it is known
	// at which level containers are limited to their grants.
	looked := p.level.Looked()
	runs := []func(context.Context) error{
		p.prober.Run,
		p.pods.Run,
		after(p.prober.Probed(), p.ours.Run),
		after(p.ours.Looked(), p.level.Run),
		p.plugin.Announcer.Announce,
		p.plugin.Announcer.AnnounceHealth,
		p.plugin.Reconciler.Run,
		p.usage.Run,
		func(ctx context.Context) error { return serve.Run(ctx, probes, p.probes()) },
		// Before the first probe nothing is to say that there is no GPU. And schedulers hear of
		// GPUs after the kubelet: it would fail the pods that they send.
		p.publish,
		after(looked, p.offered(p.runner)),
	}
	if p.cdi != nil {
		runs = append(runs, p.cdi.Run)
	}
	if p.nri != nil {
		runs = append(runs, after(looked, p.nri.Run))
	}
	if p.cores != nil {
		runs = append(runs, after(looked, p.offered(p.cores)))
	}
	return runs
}

// offered registers a resource once the node has had a GPU. Of a resource that is registered and
// has no device the kubelet fails pods that name 0 of it, as a LimitRange has them do
// (k8s.io/kubernetes/pkg/kubelet/cm/devicemanager, devicesToAllocate); one that it does not know it
// leaves alone.
func (p *parts) offered(r *deviceplugin.Runner) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			inv, changed := p.plugin.Offers.Inventory()
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

// publish writes the inventory once the kubelet has heard what there is.
func (p *parts) publish(ctx context.Context) error {
	run := func() error { return p.node.Run(ctx, p.plugin.Offers.Inventory, p.plugin.State.Allocations) }
	if p.cores == nil {
		return when(ctx, p.runner.Listed(), run)
	}
	return when(ctx, p.runner.Listed(), func() error { return when(ctx, p.cores.Listed(), run) })
}

// leave returns when the process is asked to end, and may, or when a part has
// failed. What the kubelet never heard of need not be taken back.
func (p *parts) leave(ctx context.Context, told <-chan struct{}) {
	select {
	case <-told:
	case <-ctx.Done():
		return
	}
	select {
	case <-p.runner.Listed():
		p.plugin.Announcer.Leave(ctx, p.node.Withdraw)
	default:
	}
}

// held returns how many pods of the node hold what it serves. Pods that are not listed yet may hold some.
func (p *parts) held() (int, <-chan struct{}) {
	pods, complete, changed := p.pods.Pods()
	if !complete {
		return 1, changed
	}
	return len(pods), changed
}

// until returns a channel that is closed when the process is to end: with the context, or when the node is to serve
// something else and nothing is allocated.
func until(ctx context.Context, log *zap.Logger, node *nodepods.Node, other func(label string) bool, allocated func() (int, <-chan struct{})) <-chan struct{} {
	end := make(chan struct{})
	go func() {
		defer close(end)
		select {
		case <-ctx.Done():
			return
		case <-node.Read():
		}
		asked := func() (bool, <-chan struct{}) {
			said, changed := node.Said()
			return other(said.API), changed
		}
		if replaced(ctx, asked, allocated) {
			log.Info("the process ends for the node to serve something else: no pod and no claim is left")
		}
	}()
	return end
}

// when runs something once a channel is closed.
func when(ctx context.Context, closed <-chan struct{}, run func() error) error {
	select {
	case <-ctx.Done():
		return nil
	case <-closed:
		return run()
	}
}

// probes answers the kubelet's probes, and Prometheus. A node without a GPU is ready, and says
// why it offers nothing.
func (p *parts) probes() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve.Probes(version, p.metrics, p.plugin.Alive, p.checks()...).ServeHTTP(w, r)
	})
}

func (p *parts) checks() []serve.Check {
	say := func(missing string) func() string { return func() string { return missing } }
	found := serve.Check{Name: "gpus", Missing: say("")}
	switch why, mistake := p.plugin.Announcer.Nothing(); {
	case mistake:
		found.Missing = say(why)
	case why != "":
		select {
		case <-p.level.Looked():
			found.Name = "gpus (none: " + why + ")"
		default:
			found.Missing = say(why)
		}
	}
	checks := []serve.Check{
		found,
		{Name: "pods", Missing: p.pods.Missing},
		{Name: "kubelet", Missing: p.runner.Missing},
		{Name: "inventory", Missing: p.node.Missing},
	}
	if p.cores != nil {
		checks = append(checks, serve.Check{Name: "kubelet, gpu-core", Missing: p.cores.Missing})
	}
	return checks
}
