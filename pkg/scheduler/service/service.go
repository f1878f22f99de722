package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
)

// wakeInterval is the time between two checks for waiting pods that fit now.
const wakeInterval = time.Second

// Service is a process without the part that serves kube-scheduler. Its exported fields must not change after Run.
type Service struct {
	Config
	Version  string
	Log      *zap.Logger
	Binder   *binder.Binder
	Watch    *controller.Controller
	Measured *metrics.Extender
	Checks   []serve.Check // all must succeed before the process is ready

	registry *prometheus.Registry
	decided  *history.Log
}

// New returns a service with a binder and an empty cache. Parameter self is the program name.
func New(self, version string, log *zap.Logger, conf Config) *Service {
	s := &Service{Config: conf, Version: version, Log: log, registry: metrics.NewRegistry(version), decided: history.NewLog(conf.Decisions)}
	s.Measured = metrics.NewExtender(s.registry)
	s.Binder = &binder.Binder{
		Self: self, Log: log.Named(strings.TrimPrefix(self, "gpumem-")), Names: conf.Names, Cache: cache.New(),
		Reads: new(singleflight.Group), Policies: conf.Policies, Now: time.Now,
		Decided: func(pod placement.PodRef, d history.Decision) {
			s.decided.Add(pod, d)
			s.Measured.Decided(d)
		},
	}
	return s
}

// Connect connects the service and its binder to the controller, which feeds the cache. Both are ready when the
// cache is complete. The caller may add conditions before Run.
func (s *Service) Connect(watch *controller.Controller) {
	s.Watch, s.Binder.Cluster, s.Binder.Missing = watch, watch, watch.Missing
	s.Checks = []serve.Check{{Name: "cache", Missing: watch.Missing}}
}

// fleet returns the sources of the metrics about nodes and pods.
func (s *Service) fleet() metrics.Fleet {
	return metrics.Fleet{
		Nodes: s.Binder.Cache.Nodes,
		Pods:  s.PodMetrics,
		Facts: func(nodes []placement.Node) inspect.Facts {
			return nodefilter.Facts(s.Names, nodes, s.Watch.Node, nil)
		},
		Assumed: s.Binder.Cache.AssumedBefore,
		Waiting: s.Watch.Waiting,
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
		used = (&page.UsageReader{Log: s.Log.Named("measured"), Pods: s.Watch, Namespace: string(namespace), Now: time.Now}).Used
	}
	return &page.Source{
		Version: s.Version, Cluster: s.Cluster,
		Used:  used,
		Nodes: s.Binder.Cache.Nodes, Missing: s.Watch.Missing,
		Facts: func(nodes []placement.Node) inspect.Facts {
			facts := nodefilter.Facts(s.Names, nodes, s.Watch.Node, s.Watch.Waiting())
			facts.Policy = s.Policies.GPU
			return facts
		},
	}
}

// Run opens the ports for probes and for readers, and logs their addresses together with those that the caller has
// opened. Then, until the context is done, it serves the ports, reviews assumed pods, compares the cache, updates the
// prices, wakes waiting pods, and runs the caller's tasks.
func (s *Service) Run(ctx context.Context, wake func(context.Context), opened []zap.Field, tasks ...func(context.Context) error) error {
	probes, err := net.Listen("tcp", s.ProbeListen)
	if err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	reads, err := net.Listen("tcp", s.ReadListen)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for readers: %w", err), probes.Close())
	}
	s.Log.Info("serving", append(opened, zap.Stringer("probes", probes.Addr()), zap.Stringer("reads", reads.Addr()))...)
	group, ctx := errgroup.WithContext(ctx)
	every := func(interval time.Duration, do func(context.Context)) {
		group.Go(func() error { wait.UntilWithContext(ctx, do, interval); return nil })
	}
	// Requests do not update the prices (package ranking): kube-scheduler sends one request at a time, and the next
	// pods would wait until all nodes have been evaluated.
	every(time.Second, func(context.Context) { s.Binder.Cache.Reprice() })
	every(5*time.Second, func(ctx context.Context) { s.Binder.ReviewAssumed(ctx, s.AssumeLimit) })
	every(wakeInterval, wake)
	if s.SelfCheck > 0 {
		comparer := controller.Comparer{Log: s.Log.Named("comparer"), Names: s.Names, Cache: s.Binder.Cache, Stored: s.Watch.Stored, Compared: s.Measured.Compared}
		every(s.SelfCheck, func(context.Context) { comparer.Compare() })
	}
	lock := func() { s.Binder.Cache.PodNode("") } // returns only if the lock of the cache is available
	tasks = append(tasks,
		func(ctx context.Context) error {
			return serve.Run(ctx, probes, serve.Probes(s.Version, metrics.Handler(s.registry, s.fleet().Series), lock, s.Checks...))
		},
		func(ctx context.Context) error {
			return serve.Run(ctx, reads, page.Handler(s.source(), map[string]http.Handler{history.Path: s.decided}, time.Now))
		})
	for _, run := range tasks {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}
