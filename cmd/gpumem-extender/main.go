// Command gpumem-extender is a scheduler extender for GPU memory. It reports to kube-scheduler which nodes a pod
// fits and which of them is best, and binds pods to GPUs.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/process/daemon"
	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/extender"
	"github.com/gpumem/gpumem/pkg/scheduler/service"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(daemon.Main("gpumem-extender", run)) }

// run is main with its environment as parameters.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var opts options
	parse, do := opts.parse, start
	if len(args) > 0 && args[0] == "cleanup" {
		parse, do, args = opts.parseCleanup, cleanup, args[1:]
	}
	switch err := parse(args, stdout); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return err
	case opts.showVersion:
		fmt.Fprintln(stdout, version)
		return nil
	}
	conf, err := opts.complete()
	if err != nil {
		return err
	}
	log, err := opts.log.New(stderr)
	if err != nil {
		return err
	}
	daemon.BridgeKlog(log)
	log.Info("starting", zap.String("version", version), zap.Any("options", daemon.Effective(opts.flags)))
	client, err := conf.kube.Client("gpumem-extender", version)
	if err == nil {
		err = do(ctx, log, conf, client)
	}
	log.Info("stopped", zap.Error(err))
	return err
}

// start runs the parts of the process until the context is done.
func start(ctx context.Context, log *zap.Logger, conf config, client kubernetes.Interface) error {
	state := cache.New()
	watch, err := controller.New(log.Named("controller"), client, conf.service.Names, state)
	if err != nil {
		return err
	}
	watch.Lease = conf.lease
	parts := service.New("gpumem-extender", version, log, conf.service, state, watch)
	ext := &extender.Extender{Neighbours: watch, Alone: conf.chooseNode, Answered: parts.Measured.Answered}
	ext.Binder = parts.Binder
	verbs, err := net.Listen("tcp", conf.listen)
	if err == nil && conf.tls.CertFile != "" {
		verbs, err = conf.tls.Listener(verbs, log.Named("tls"))
	}
	if err != nil {
		return fmt.Errorf("listen for kube-scheduler: %w", err)
	}
	// The replica keeps the Lease until it has responded to the last Bind.
	leading, resign := context.WithCancel(context.WithoutCancel(ctx))
	tasks := []func(context.Context) error{
		func(ctx context.Context) error { watch.Run(ctx); return nil },
		func(ctx context.Context) error { defer resign(); return serve.Run(ctx, verbs, ext.Routes(version)) },
	}
	if conf.leaderElect { // otherwise all replicas serve kube-scheduler
		leads, err := newElection(client, conf.options, log.Named("leader"), ext.Drain)
		if err != nil {
			return fmt.Errorf("take part in the election: %w", err)
		}
		ext.Leads, ext.Missing = leads.Leads, func() string { return cmp.Or(watch.Missing(), leads.Missing()) }
		parts.Checks = append(parts.Checks, serve.Check{Name: "leader", Missing: leads.Missing})
		tasks = append(tasks, func(context.Context) error { return leads.Run(leading) })
	}
	return parts.Run(ctx, func(ctx context.Context) { ext.Wake(ctx, watch) }, []zap.Field{zap.Stringer("verbs", verbs.Addr())}, tasks...)
}
