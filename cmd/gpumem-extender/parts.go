package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
	"github.com/gpumem/gpumem/pkg/scheduler/extender"
	"github.com/gpumem/gpumem/pkg/scheduler/service"
)

// parts are what the process is made of.
type parts struct {
	conf     config
	log      *zap.Logger
	service  *service.Service
	extender *extender.Extender
	hand     *controller.Client
	leader   *election // nil where all replicas answer
	verbs    net.Listener
}

// start makes the parts and runs them until the context is done.
func start(ctx context.Context, log *zap.Logger, conf config) error {
	p, err := newParts(log, conf)
	if err != nil {
		return err
	}
	if err := p.listen(); err != nil {
		return err
	}
	err = p.run(ctx)
	log.Info("stopped", zap.Error(err))
	return err
}

func newParts(log *zap.Logger, conf config) (*parts, error) {
	client, err := conf.kube.Client("gpumem-extender", version)
	if err != nil {
		return nil, err
	}
	books := cache.New()
	watch, err := controller.New(log.Named("controller"), client, conf.service.Names, books)
	if err != nil {
		return nil, err
	}
	p := &parts{conf: conf, log: log}
	missing := watch.Missing
	var checks []serve.Check
	if conf.leaderElect {
		p.leader = &election{client: client, namespace: conf.leaseNamespace, name: conf.leaseName, identity: conf.identity, log: log.Named("leader")}
		checks = append(checks, serve.Check{Name: "leader", Missing: p.leader.Missing})
		missing = func() string { return cmp.Or(watch.Missing(), p.leader.Missing()) }
	}
	p.hand = controller.NewClient(watch, client, conf.lease)
	p.service = service.New("gpumem-extender", version, log, conf.service, books, p.hand, checks...)
	p.extender = &extender.Extender{
		Decider: decider.Decider{Binder: p.service.Binder(log.Named("extender"), p.hand, missing)}, Neighbours: watch,
		Alone: conf.chooseNode, Answered: p.service.Measured.Answered,
	}
	return p, nil
}

// run runs the parts until the context is done.
func (p *parts) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { p.service.Watch.Run(ctx); return nil })
	group.Go(func() error {
		return p.service.Run(ctx, p.extender.Binder, func(ctx context.Context) { p.extender.Wake(ctx, p.hand) })
	})
	// The Lease is kept until the last Bind has been answered.
	leading, resign := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer resign()
		return serve.Run(ctx, p.verbs, p.extender.Routes(version))
	})
	if p.leader != nil {
		group.Go(func() error { return p.leader.Run(leading) })
	}
	return group.Wait()
}

// listen opens the ports: for kube-scheduler by mutual TLS where there are files for it.
func (p *parts) listen() (err error) {
	if p.verbs, err = listenForVerbs(p.log, p.conf); err != nil {
		return fmt.Errorf("listen for kube-scheduler: %w", err)
	}
	if err := p.service.Listen(zap.Stringer("verbs", p.verbs.Addr())); err != nil {
		return errors.Join(err, p.verbs.Close())
	}
	return nil
}

// listenForVerbs listens for kube-scheduler, by mutual TLS where there are files
// for it.
func listenForVerbs(log *zap.Logger, conf config) (net.Listener, error) {
	listener, err := net.Listen("tcp", conf.listen)
	if err != nil || !conf.withTLS() {
		return listener, err
	}
	secure, err := conf.tls.Listener(listener, log.Named("tls"))
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return secure, nil
}
