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
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/metrics"
	"github.com/gpumem/gpumem/pkg/report/nodefilter"
	"github.com/gpumem/gpumem/pkg/report/page"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/usageclient"
)

// reviewInterval is the time between two reviews of assumed pods.
const reviewInterval = 5 * time.Second

// repriceInterval is the time between two updates of the prices (package ranking). Requests do not update the
// prices: kube-scheduler sends one request at a time, and the next pods would wait until all nodes have been
// evaluated.
const repriceInterval = time.Second

// wakeInterval is the time between two checks for waiting pods that fit now.
const wakeInterval = time.Second

// Service is a process without the part that serves kube-scheduler.
type Service struct {
	Config
	Self     string // program name
	Version  string
	Log      *zap.Logger
	Cache    *cache.Cache
	Watch    *controller.Controller
	Measured *metrics.Extender

	decided   *history.Log
	comparer  *controller.Comparer
	probes    http.Handler
	reads     http.Handler
	listeners struct{ probes, reads net.Listener }
}

// New returns a service that uses the controller. It is ready when the cache is complete and no check reports
// anything missing.
func New(self, version string, log *zap.Logger, conf Config, books *cache.Cache, watch *controller.Controller, checks ...serve.Check) *Service {
	s := &Service{Config: conf, Self: self, Version: version, Log: log, Cache: books, Watch: watch, decided: history.NewLog(conf.Decisions)}
	registry := metrics.NewRegistry(version)
	s.Measured = metrics.NewExtender(registry)
	s.comparer = &controller.Comparer{Log: log.Named("comparer"), Names: conf.Names, Cache: books, Stored: watch.Stored, Compared: s.Measured.Compared}
	checks = append([]serve.Check{{Name: "cache", Missing: watch.Missing}}, checks...)
	s.probes = serve.Probes(version, metrics.Handler(registry, s.fleet().Series), s.checkLocks, checks...)
	s.reads = page.Handler(s.source(), map[string]http.Handler{history.Path: s.decided}, time.Now)
	return s
}

// Binder returns the process's binder.
func (s *Service) Binder(log *zap.Logger, cluster binder.Cluster, missing func() string) *binder.Binder {
	return &binder.Binder{
		Self: s.Self, Log: log, Names: s.Names, Cache: s.Cache, Cluster: cluster, Reads: new(singleflight.Group),
		Policies: s.Policies, Now: time.Now, Missing: missing, Decided: s.decide,
	}
}

func (s *Service) decide(pod placement.PodRef, d history.Decision) {
	s.decided.Add(pod, d)
	s.Measured.Decided(d)
}

// checkLocks returns only if the lock of the cache is available.
func (s *Service) checkLocks() { s.Cache.PodNode("") }

// fleet returns the sources of the metrics about nodes and pods.
func (s *Service) fleet() metrics.Fleet {
	return metrics.Fleet{
		Nodes: s.Cache.Nodes,
		Pods:  s.PodMetrics,
		Facts: func(n placement.Node) inspect.NodeFacts {
			node := s.Watch.Node(n.Name)
			if node == nil {
				return inspect.NodeFacts{} // the node was deleted meanwhile
			}
			return nodefilter.NodeFacts(s.Names, node, nodefilter.Advertises(s.Names, n))
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

// namespaceFile contains the namespace of the process's pod.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// source returns the data of the page; nil if the page is disabled.
func (s *Service) source() *page.Source {
	if !s.Page {
		return nil
	}
	used := func() map[gpu.UUID]int64 { return nil }
	if namespace, err := os.ReadFile(namespaceFile); err == nil { // outside a pod, the device plugins are unreachable
		used = (&usageclient.Reader{Log: s.Log.Named("measured"), Pods: s.Watch, Namespace: string(namespace), Now: time.Now}).Used
	}
	return &page.Source{
		Version: s.Version, Cluster: s.Cluster,
		Used:  used,
		Nodes: s.Cache.Nodes, Missing: s.Watch.Missing,
		Facts: func(nodes []placement.Node) inspect.Facts {
			facts := nodefilter.Facts(s.Names, nodes, s.Watch.Node, s.Watch.Waiting())
			facts.Policy = s.Policies.GPU
			return facts
		},
	}
}

// Listen opens the ports for probes and for readers, and logs their addresses. Parameter more contains the
// other addresses of the process.
func (s *Service) Listen(more ...zap.Field) (err error) {
	if s.listeners.probes, err = net.Listen("tcp", s.ProbeListen); err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	if s.listeners.reads, err = net.Listen("tcp", s.ReadListen); err != nil {
		return errors.Join(fmt.Errorf("listen for readers: %w", err), s.listeners.probes.Close())
	}
	s.Log.Info("serving", append(more, zap.Stringer("probes", s.listeners.probes.Addr()), zap.Stringer("reads", s.listeners.reads.Addr()))...)
	return nil
}

// Run serves the ports, reviews assumed pods, compares the cache, updates the prices, and wakes waiting pods,
// until the context is done.
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
	group.Go(func() error { return serve.Run(ctx, s.listeners.probes, s.probes) })
	group.Go(func() error { return serve.Run(ctx, s.listeners.reads, s.reads) })
	return group.Wait()
}
