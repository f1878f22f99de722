package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/report/decisions"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/metrics"
	"github.com/gpumem/gpumem/pkg/report/page"
	"github.com/gpumem/gpumem/pkg/report/reach"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/measured"
)

// reviewInterval is how often assumptions are looked at for their age.
const reviewInterval = 5 * time.Second

// repriceInterval is how often prices follow the nodes. They are not made while a
// pod is asked about: kube-scheduler asks about one at a time, and the others
// would wait until all nodes have been looked at.
const repriceInterval = time.Second

// wakeInterval is how often waiting pods are looked at that may have begun to fit.
const wakeInterval = time.Second

// Service is what a process is made of but what answers kube-scheduler.
type Service struct {
	Config
	Self     string // the name of the program
	Version  string
	Log      *zap.Logger
	Cache    *cache.Cache
	Watch    *controller.Controller
	Measured *metrics.Extender

	decided  *decisions.Log
	comparer *controller.Comparer
	probes   http.Handler
	reads    http.Handler
	on       struct{ probes, reads net.Listener }
}

// New makes a service that reads and compares by the client. It is ready when the cache is, and
// the checks miss nothing.
func New(self, version string, log *zap.Logger, conf Config, books *cache.Cache, client *controller.Client, checks ...serve.Check) *Service {
	s := &Service{Config: conf, Self: self, Version: version, Log: log, Cache: books, Watch: client.Controller, decided: decisions.NewLog(conf.Decisions)}
	registry := metrics.NewRegistry(version)
	s.Measured = metrics.NewExtender(registry)
	s.comparer = &controller.Comparer{Log: log.Named("comparer"), Names: conf.Names, Cache: books, Source: client.Controller, Drift: s.Measured}
	checks = append([]serve.Check{{Name: "cache", Missing: s.Watch.Missing}}, checks...)
	s.probes = serve.Probes(version, metrics.Handler(registry, s.fleet().Series), s.alive, checks...)
	s.reads = page.Handler(s.source(client), map[string]http.Handler{decisions.Path: s.decided}, time.Now)
	return s
}

// Binder returns what binds for the process.
func (s *Service) Binder(log *zap.Logger, cluster binder.Cluster, missing func() string) *binder.Binder {
	return &binder.Binder{
		Self: s.Self, Log: log, Names: s.Names, Cache: s.Cache, Cluster: cluster, Reads: new(singleflight.Group),
		Policies: s.Policies, Now: time.Now, Missing: missing, Decided: s.decide,
	}
}

func (s *Service) decide(pod placement.PodRef, d decisions.Decision) {
	s.decided.Add(pod, d)
	s.Measured.Decided(d)
}

// alive returns unless the lock of the cache can be had no more.
func (s *Service) alive() { s.Cache.PodNode("") }

// fleet is what the metrics tell of nodes and pods.
func (s *Service) fleet() metrics.Fleet {
	return metrics.Fleet{
		Nodes: s.Cache.Nodes,
		Pods:  s.PodMetrics,
		Facts: func(n placement.Node) inspect.NodeFacts {
			node := s.Watch.Node(n.Name)
			if node == nil {
				return inspect.NodeFacts{} // gone since
			}
			return reach.NodeFacts(s.Names, node, reach.Advertises(s.Names, n))
		},
		Assumed: s.Cache.AssumedBefore,
		Waiting: func() (out []metrics.WaitingPod) {
			for _, pod := range s.Watch.Waiting() {
				out = append(out, metrics.WaitingPod{Namespace: pod.Namespace, Name: pod.Name, Created: pod.CreationTimestamp.Time})
			}
			return out
		},
	}
}

// namespaceFile has the namespace that a pod runs in.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// source is what the page shows; nil where there is none.
func (s *Service) source(client *controller.Client) *page.Source {
	if !s.Page {
		return nil
	}
	used := func() map[gpu.UUID]int64 { return nil }
	if namespace, err := os.ReadFile(namespaceFile); err == nil { // outside of a pod, the plugins cannot be reached
		used = (&measured.Reader{Log: s.Log.Named("measured"), Pods: client, Namespace: string(namespace), Now: time.Now}).Used
	}
	return &page.Source{
		Version: s.Version, Cluster: s.Cluster,
		Used:  used,
		Nodes: s.Cache.Nodes, Missing: s.Watch.Missing,
		Facts: func(nodes []placement.Node) inspect.Facts {
			facts := reach.Facts(s.Names, nodes, s.Watch.Node, s.Watch.Waiting())
			facts.Policy = s.Policies.GPU
			return facts
		},
	}
}

// Listen opens the ports of probes and of what people read, and logs which. More are other
// ports that the process listens on.
func (s *Service) Listen(more ...zap.Field) (err error) {
	if s.on.probes, err = net.Listen("tcp", s.ProbeListen); err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	if s.on.reads, err = net.Listen("tcp", s.ReadListen); err != nil {
		return errors.Join(fmt.Errorf("listen for readers: %w", err), s.on.probes.Close())
	}
	s.Log.Info("serving", append(more, zap.Stringer("probes", s.on.probes.Addr()), zap.Stringer("reads", s.on.reads.Addr()))...)
	return nil
}

// Run serves the ports, looks from time to time at what was assumed and whether the cache is
// right, and has waiting pods woken, until the context is done.
func (s *Service) Run(ctx context.Context, b *binder.Binder, wake func(context.Context)) error {
	group, ctx := errgroup.WithContext(ctx)
	every := func(interval time.Duration, do func(context.Context)) {
		group.Go(func() error { wait.UntilWithContext(ctx, do, interval); return nil })
	}
	every(repriceInterval, func(context.Context) { s.Cache.Reprice() })
	every(reviewInterval, func(ctx context.Context) { b.ReviewAssumed(ctx, s.AssumeLimit) })
	every(wakeInterval, wake)
	if s.SelfCheck > 0 {
		every(s.SelfCheck, func(context.Context) { s.comparer.Compare() })
	}
	group.Go(func() error { return serve.Run(ctx, s.on.probes, s.probes) })
	group.Go(func() error { return serve.Run(ctx, s.on.reads, s.reads) })
	return group.Wait()
}
