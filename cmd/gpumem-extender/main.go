// Command gpumem-extender answers kube-scheduler's questions about GPU memory:
// where a pod fits, which node is best, and which GPU it gets.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/cache"
	"github.com/gpumem/gpumem/pkg/controller"
	"github.com/gpumem/gpumem/pkg/decisions"
	"github.com/gpumem/gpumem/pkg/extender"
	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/logging"
	"github.com/gpumem/gpumem/pkg/metrics"
	"github.com/gpumem/gpumem/pkg/page"
	"github.com/gpumem/gpumem/pkg/placement"
	"github.com/gpumem/gpumem/pkg/serve"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gpumem-extender:", err)
		os.Exit(1)
	}
}

// run is main with its surroundings passed in.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "cleanup" {
		return runCleanup(ctx, args[1:], stdout, stderr)
	}
	opts := defaultOptions()
	switch err := opts.parse(args, stdout); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	case opts.showVersion:
		fmt.Fprintln(stdout, version)
		return nil
	}
	if err := opts.validate(); err != nil {
		return err
	}
	log, err := logging.New(opts.logLevel, opts.logFormat, stderr)
	if err != nil {
		return err
	}
	logging.BridgeKlog(log)
	log.Info("starting", zap.String("version", version), zap.Any("options", opts.effective()))
	return start(ctx, log, opts)
}

// start wires the parts together and runs them until the context is done.
func start(ctx context.Context, log *zap.Logger, opts options) error {
	names, err := api.NewNames(opts.domain)
	if err != nil {
		return err
	}
	policies, err := opts.policies()
	if err != nil {
		return err
	}
	client, err := opts.client()
	if err != nil {
		return err
	}
	books := cache.New()
	watch, err := controller.New(log.Named("controller"), client, names, books)
	if err != nil {
		return err
	}
	cluster := controller.NewClient(watch, client)
	registry := metrics.NewRegistry()
	measured := metrics.NewExtender(registry)
	metrics.RegisterFleet(registry, metrics.Fleet{Nodes: books.Nodes, Assumed: books.AssumedBefore, Waiting: func() int { return len(watch.Waiting()) }})
	comparer := &controller.Comparer{
		Log: log.Named("comparer"), Names: names, Cache: books,
		Source: cluster, Drift: measured,
	}
	decided := decisions.NewLog(opts.decisions)
	ext := &extender.Extender{
		Log: log.Named("extender"), Names: names, Cache: books, Cluster: cluster, Neighbours: watch,
		Policy: policies.GPU, NodePolicy: policies.Node, Now: time.Now, Missing: watch.Missing,
		Answered: measured.Answered,
		Decided: func(pod placement.PodRef, d decisions.Decision) {
			decided.Add(pod, d)
			measured.Decided(d)
		},
	}
	checks := []serve.Check{{Name: "cache", Missing: watch.Missing}}
	var leader *election
	if opts.leaderElect {
		leader = &election{client: client, namespace: opts.leaseNamespace, name: opts.leaseName, identity: opts.identity, log: log.Named("leader")}
		checks = append(checks, serve.Check{Name: "leader", Missing: leader.Missing})
		ext.Missing = func() string { return cmp.Or(watch.Missing(), leader.Missing()) }
	}
	verbs, err := listenForVerbs(log, opts)
	if err != nil {
		return fmt.Errorf("listen for kube-scheduler: %w", err)
	}
	probes, err := net.Listen("tcp", opts.probeListen)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for probes: %w", err), verbs.Close())
	}
	reads, err := net.Listen("tcp", opts.readListen)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for readers: %w", err), verbs.Close(), probes.Close())
	}
	var source *page.Source
	if opts.page {
		source = &page.Source{
			Resource: string(names.GPUMem()), Nodes: books.Nodes, Missing: watch.Missing,
			Waiting: func() []inspect.WaitFacts { return waiting(names, watch.Waiting()) },
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { watch.Run(ctx); return nil })
	group.Go(func() error {
		return serve.Run(ctx, reads, page.Handler(source, map[string]http.Handler{decisions.Path: decided}, time.Now))
	})
	group.Go(func() error {
		wait.UntilWithContext(ctx, func(ctx context.Context) { ext.ReviewAssumed(ctx, opts.assumeLimit) }, reviewInterval)
		return nil
	})
	if opts.selfCheck > 0 {
		group.Go(func() error {
			wait.UntilWithContext(ctx, comparer.Compare, opts.selfCheck)
			return nil
		})
	}
	// The Lease is held until the last Bind has been answered.
	leading, resign := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer resign()
		return serve.Run(ctx, verbs, ext.Routes(version))
	})
	if leader != nil {
		group.Go(func() error { return leader.Run(leading) })
	}
	group.Go(func() error {
		return serve.Run(ctx, probes, serve.Probes(version, metrics.Handler(registry), checks...))
	})
	log.Info("serving", zap.Stringer("verbs", verbs.Addr()), zap.Stringer("probes", probes.Addr()), zap.Stringer("reads", reads.Addr()))
	err = group.Wait()
	log.Info("stopped", zap.Error(err))
	return err
}

// waiting says what pods ask for that are on no node.
func waiting(names api.Names, pods []*v1.Pod) []inspect.WaitFacts {
	out := make([]inspect.WaitFacts, 0, len(pods))
	for _, pod := range pods {
		w := inspect.WaitFacts{Pod: api.Ref(pod), Nominated: api.NominatedTo(pod)}
		var err error
		if w.Request, err = names.Request(pod); err != nil {
			w.Problem = err.Error()
		} else if w.Request.Empty() {
			continue // it names an amount of zero
		}
		out = append(out, w)
	}
	return out
}

// listenForVerbs listens for kube-scheduler, by mutual TLS where there are files
// for it.
func listenForVerbs(log *zap.Logger, opts options) (net.Listener, error) {
	listener, err := net.Listen("tcp", opts.listen)
	if err != nil || !opts.withTLS() {
		return listener, err
	}
	secure, err := opts.tls.Listener(listener, log.Named("tls"))
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return secure, nil
}

// reviewInterval is how often assumptions are looked at for their age.
const reviewInterval = 5 * time.Second
