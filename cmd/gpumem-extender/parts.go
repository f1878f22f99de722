package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/report/decisions"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/metrics"
	"github.com/gpumem/gpumem/pkg/report/page"
	"github.com/gpumem/gpumem/pkg/report/reach"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/extender"
)

// reviewInterval is how often assumptions are looked at for their age.
const reviewInterval = 5 * time.Second

// repriceInterval is how often prices follow the nodes. They are not made while a
// pod is asked about: kube-scheduler asks about one at a time, and the others
// would wait until all nodes have been looked at.
const repriceInterval = time.Second

// wakeInterval is how often waiting pods are looked at that may have begun to fit.
const wakeInterval = time.Second

// parts are what the process is made of.
type parts struct {
	conf     config
	log      *zap.Logger
	books    *cache.Cache
	watch    *controller.Controller
	comparer *controller.Comparer
	extender *extender.Extender
	leader   *election // nil where all replicas answer

	probes, reads http.Handler
}

// start makes the parts and runs them until the context is done.
func start(ctx context.Context, log *zap.Logger, conf config) error {
	p, err := newParts(log, conf)
	if err != nil {
		return err
	}
	on, err := listen(log, conf)
	if err != nil {
		return err
	}
	log.Info("serving", zap.Stringer("verbs", on.verbs.Addr()), zap.Stringer("probes", on.probes.Addr()), zap.Stringer("reads", on.reads.Addr()))
	err = p.run(ctx, on)
	log.Info("stopped", zap.Error(err))
	return err
}

func newParts(log *zap.Logger, conf config) (*parts, error) {
	names := conf.names
	client, err := conf.kube.Client("gpumem-extender", version)
	if err != nil {
		return nil, err
	}
	p := &parts{conf: conf, log: log, books: cache.New()}
	if p.watch, err = controller.New(log.Named("controller"), client, names, p.books); err != nil {
		return nil, err
	}
	cluster := controller.NewClient(p.watch, client, conf.lease)
	registry := metrics.NewRegistry()
	measured := metrics.NewExtender(registry)
	metrics.RegisterFleet(registry, p.fleet(names))
	p.comparer = &controller.Comparer{Log: log.Named("comparer"), Names: names, Cache: p.books, Source: cluster, Drift: measured}
	decided := decisions.NewLog(conf.decisions)
	p.extender = &extender.Extender{
		Log: log.Named("extender"), Names: names, Cache: p.books, Cluster: cluster, Reads: new(singleflight.Group), Neighbours: p.watch,
		Policy: conf.policies.GPU, NodePolicy: conf.policies.Node, Alone: conf.chooseNode, Now: time.Now, Missing: p.watch.Missing,
		Answered: measured.Answered,
		Decided: func(pod placement.PodRef, d decisions.Decision) {
			decided.Add(pod, d)
			measured.Decided(d)
		},
	}
	checks := []serve.Check{{Name: "cache", Missing: p.watch.Missing}}
	if conf.leaderElect {
		p.leader = &election{client: client, namespace: conf.leaseNamespace, name: conf.leaseName, identity: conf.identity, log: log.Named("leader")}
		checks = append(checks, serve.Check{Name: "leader", Missing: p.leader.Missing})
		p.extender.Missing = func() string { return cmp.Or(p.watch.Missing(), p.leader.Missing()) }
	}
	p.probes = serve.Probes(version, metrics.Handler(registry), p.alive, checks...)
	p.reads = page.Handler(p.page(names), map[string]http.Handler{decisions.Path: decided}, time.Now)
	return p, nil
}

// alive returns unless nobody can have the lock of the books any more.
func (p *parts) alive() { p.books.Where("") }

// fleet is what the metrics tell of nodes and pods.
func (p *parts) fleet(names api.Names) metrics.Fleet {
	return metrics.Fleet{
		Nodes: p.books.Nodes,
		Facts: func(n placement.Node) inspect.NodeFacts {
			node := p.watch.Node(n.Name)
			if node == nil {
				return inspect.NodeFacts{} // gone since
			}
			return reach.NodeFacts(names, node, n.Advertised())
		},
		Assumed: p.books.AssumedBefore,
		Waiting: func() int { return len(p.watch.Waiting()) },
	}
}

// page is what the page shows; nil where there is none.
func (p *parts) page(names api.Names) *page.Source {
	if !p.conf.page {
		return nil
	}
	return &page.Source{
		Nodes: p.books.Nodes, Missing: p.watch.Missing,
		Facts: func(nodes []placement.Node) inspect.Facts {
			facts := reach.Facts(names, nodes, p.watch.Node, p.watch.Waiting())
			facts.Policy = p.extender.Policy
			return facts
		},
	}
}

// run runs the parts until the context is done.
func (p *parts) run(ctx context.Context, on listeners) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { p.watch.Run(ctx); return nil })
	group.Go(func() error {
		wait.UntilWithContext(ctx, func(context.Context) { p.books.Reprice() }, repriceInterval)
		return nil
	})
	group.Go(func() error {
		wait.UntilWithContext(ctx, func(ctx context.Context) { p.extender.ReviewAssumed(ctx, p.conf.assumeLimit) }, reviewInterval)
		return nil
	})
	group.Go(func() error {
		wait.UntilWithContext(ctx, p.extender.WakeWaiting, wakeInterval)
		return nil
	})
	if p.conf.selfCheck > 0 {
		group.Go(func() error {
			wait.UntilWithContext(ctx, p.comparer.Compare, p.conf.selfCheck)
			return nil
		})
	}
	// The Lease is held until the last Bind has been answered.
	leading, resign := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer resign()
		return serve.Run(ctx, on.verbs, p.extender.Routes(version))
	})
	if p.leader != nil {
		group.Go(func() error { return p.leader.Run(leading) })
	}
	group.Go(func() error { return serve.Run(ctx, on.probes, p.probes) })
	group.Go(func() error { return serve.Run(ctx, on.reads, p.reads) })
	return group.Wait()
}

// listeners are where the process is spoken to: by kube-scheduler, by the kubelet
// and Prometheus, and by whoever reads.
type listeners struct{ verbs, probes, reads net.Listener }

func listen(log *zap.Logger, conf config) (on listeners, err error) {
	if on.verbs, err = listenForVerbs(log, conf); err != nil {
		return on, fmt.Errorf("listen for kube-scheduler: %w", err)
	}
	if on.probes, err = net.Listen("tcp", conf.probeListen); err != nil {
		return on, errors.Join(fmt.Errorf("listen for probes: %w", err), on.verbs.Close())
	}
	if on.reads, err = net.Listen("tcp", conf.readListen); err != nil {
		return on, errors.Join(fmt.Errorf("listen for readers: %w", err), on.verbs.Close(), on.probes.Close())
	}
	return on, nil
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
