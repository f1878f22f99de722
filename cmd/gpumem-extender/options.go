package main

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/process/daemon"
	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/report/page"
	"github.com/gpumem/gpumem/pkg/scheduler/service"
)

// options are the flags of the command.
type options struct {
	service.Flags
	listen string
	tls    serve.MutualTLS

	leaderElect    bool
	leaseName      string
	leaseNamespace string
	identity       string

	schedulerLease string
	chooseNode     bool

	leases []string // for cleanup to delete

	kube        daemon.Kube
	log         daemon.Log
	showVersion bool

	flags *pflag.FlagSet
}

func (o *options) parse(args []string, stdout io.Writer) error {
	o.flags = pflag.NewFlagSet("gpumem-extender", pflag.ContinueOnError)
	o.addFlags(o.flags)
	return daemon.Parse(o.flags, `gpumem-extender places pods that ask for GPU memory, as an extender of kube-scheduler.

Usage: gpumem-extender [flags]
       gpumem-extender cleanup [flags]   take away what it has written, after it was uninstalled`, args, stdout)
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
	o.Flags.AddFlags(f)
	o.kube = daemon.Kube{QPS: 500, Burst: 1000}
	o.kube.AddFlags(f)
	o.log.AddFlags(f)
	f.BoolVar(&o.showVersion, "version", false, "print the version and end")
}

// config is the parsed form of the flags.
type config struct {
	options
	service service.Config
	lease   types.NamespacedName // Lease of the kube-schedulers
}

// complete parses the flags, and returns all errors at once.
func (o *options) complete() (config, error) {
	c := config{options: *o}
	c.lease.Namespace, c.lease.Name, _ = strings.Cut(o.schedulerLease, "/")
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
	errs.Require(o.leaderElect || c.lease.Namespace != "" && c.lease.Name != "", "scheduler-lease", "%q, want namespace/name", o.schedulerLease)
	c.service, err = o.Complete()
	return c, errors.Join(append(errs, err, o.kube.Validate(), o.log.Validate())...)
}
