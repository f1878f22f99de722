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
	"strings"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/process/daemon"
	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/report/page"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/extender"
	"github.com/gpumem/gpumem/pkg/scheduler/service"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(daemon.Main("gpumem-extender", run)) }

// run is main with its environment as parameters. It returns pflag.ErrHelp after it has printed the help or the
// version.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var opts options
	parse, do := opts.parse, start
	if len(args) > 0 && args[0] == "cleanup" {
		parse, do, args = opts.parseCleanup, cleanup, args[1:]
	}
	if err := parse(args, stdout); err != nil {
		return err
	}
	if err := opts.complete(); err != nil {
		return err
	}
	log, client, err := opts.Start("gpumem-extender", version, stderr)
	if err != nil {
		return err
	}
	err = do(ctx, log, &opts, client)
	log.Info("stopped", zap.Error(err))
	return err
}

// options are the flags of the command.
type options struct {
	daemon.Options
	service.Config

	listen                              string
	tls                                 serve.MutualTLS
	leaderElect, chooseNode             bool
	leaseName, leaseNamespace, identity string // for the election
	schedulerLease                      string
	lease                               types.NamespacedName // set by complete, from schedulerLease
	leases                              []string             // for cleanup to delete
}

func (o *options) parse(args []string, stdout io.Writer) error {
	f := pflag.NewFlagSet("gpumem-extender", pflag.ContinueOnError)
	o.addFlags(f)
	return o.Parse(f, version, `gpumem-extender places pods that ask for GPU memory, as an extender of kube-scheduler.

Usage: gpumem-extender [flags]
       gpumem-extender cleanup [flags]   take away what it has written, after it was uninstalled`, args, stdout)
}

// parseCleanup parses the arguments of "gpumem-extender cleanup".
func (o *options) parseCleanup(args []string, stdout io.Writer) error {
	o.addFlags(new(pflag.FlagSet)) // sets the default values
	f := pflag.NewFlagSet("gpumem-extender cleanup", pflag.ContinueOnError)
	f.StringVar(&o.Domain, "resource-domain", o.Domain, "`domain` of the extended resources and annotations")
	f.StringSliceVar(&o.leases, "lease", nil, "`namespace/name` of a Lease to delete")
	return o.Parse(f, version, `gpumem-extender cleanup takes the inventory annotation and the condition `+string(api.GPUsHealthy)+` from all nodes, and Leases away.

Usage: gpumem-extender cleanup [flags]`, args, stdout)
}

func (o *options) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "listen", "127.0.0.1:8010", "`address` on which kube-scheduler calls filter, prioritize, preempt and bind; loopback only, unless clients must show a certificate")
	f.StringVar(&o.tls.CertFile, "tls-cert-file", "", "`file` with the certificate to serve with, PEM; read again for each connection")
	f.StringVar(&o.tls.KeyFile, "tls-private-key-file", "", "`file` with its key, PEM")
	f.StringVar(&o.tls.ClientCAFile, "tls-client-ca-file", "", "`file` with the authorities that sign kube-scheduler's certificate, PEM")
	f.StringVar(&o.tls.ClientName, "tls-client-name", "gpumem-kube-scheduler", "common `name` that kube-scheduler's certificate must have")
	f.BoolVar(&o.leaderElect, "leader-elect", false, "answer only while this replica leads: where several serve one kube-scheduler")
	f.StringVar(&o.leaseName, "leader-elect-lease-name", "gpumem-extender", "`name` of the Lease for the election of the leader")
	f.StringVar(&o.leaseNamespace, "leader-elect-lease-namespace", os.Getenv("POD_NAMESPACE"), "`namespace` of the Lease; default: the environment variable POD_NAMESPACE")
	f.StringVar(&o.identity, "leader-elect-identity", os.Getenv("POD_NAME"), "`name` of this replica in the Lease, which adds an underscore and a UUID of the process; default: the environment variable POD_NAME")
	f.StringVar(&o.schedulerLease, "scheduler-lease", "kube-system/kube-scheduler", "`namespace/name` of the Lease of the kube-schedulers that each have an extender like this one; not used with --leader-elect")
	f.BoolVar(&o.chooseNode, "choose-node", false, "answer filter with the best node alone, unless the pod itself prefers some nodes: so scores of kube-scheduler do not count otherwise. Without this flag, its scores and this extender's add up")
	o.AddFlags(f)
	o.Kube = daemon.Kube{QPS: 500, Burst: 1000}
}

// complete parses the flags, and returns all errors at once.
func (o *options) complete() error {
	o.lease.Namespace, o.lease.Name, _ = strings.Cut(o.schedulerLease, "/")
	var errs daemon.FlagErrors
	_, _, err := net.SplitHostPort(o.listen)
	errs.Add("listen", err)
	withTLS := o.tls.CertFile != "" || o.tls.KeyFile != "" || o.tls.ClientCAFile != ""
	errs.Require(err != nil || withTLS || page.IsLoopback(o.listen), "listen",
		"%q is not a loopback address, and anyone who reaches it can bind pods; give the --tls-… files, or listen on 127.0.0.1", o.listen)
	errs.Require(!withTLS || o.tls.CertFile != "" && o.tls.KeyFile != "" && o.tls.ClientCAFile != "" && o.tls.ClientName != "",
		"tls-cert-file, --tls-private-key-file, --tls-client-ca-file and --tls-client-name", "want all of them or no file")
	errs.Require(!o.leaderElect || o.leaseName != "" && o.leaseNamespace != "" && o.identity != "",
		"leader-elect", "want --leader-elect-lease-name, --leader-elect-lease-namespace and --leader-elect-identity too")
	errs.Require(o.leaderElect || o.lease.Namespace != "" && o.lease.Name != "", "scheduler-lease", "%q, want namespace/name", o.schedulerLease)
	return errors.Join(append(errs, o.Complete(), o.Validate())...)
}

// start runs the parts of the process until the context is done.
func start(ctx context.Context, log *zap.Logger, opts *options, client kubernetes.Interface) error {
	parts := service.New("gpumem-extender", version, log, opts.Config)
	watch, err := controller.New(log.Named("controller"), client, opts.Names, parts.Binder.Cache)
	if err != nil {
		return err
	}
	watch.Lease = opts.lease
	parts.Connect(watch)
	ext := &extender.Extender{Neighbours: watch, Alone: opts.chooseNode, Answered: parts.Measured.Answered}
	ext.Binder = parts.Binder
	verbs, err := net.Listen("tcp", opts.listen)
	if err == nil && opts.tls.CertFile != "" {
		verbs, err = opts.tls.Listener(verbs, log.Named("tls"))
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
	if opts.leaderElect { // otherwise all replicas serve kube-scheduler
		leads, err := newElection(client, opts, log.Named("leader"), ext.Drain)
		if err != nil {
			return fmt.Errorf("take part in the election: %w", err)
		}
		ext.Leads, ext.Missing = leads.Leads, func() string { return cmp.Or(watch.Missing(), leads.Missing()) }
		parts.Checks = append(parts.Checks, serve.Check{Name: "leader", Missing: leads.Missing})
		tasks = append(tasks, func(context.Context) error { return leads.Run(leading) })
	}
	return parts.Run(ctx, func(ctx context.Context) { ext.Wake(ctx, watch) }, []zap.Field{zap.Stringer("verbs", verbs.Addr())}, tasks...)
}
