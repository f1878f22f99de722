package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/process/daemon"
	"github.com/gpumem/gpumem/pkg/process/serve"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
)

// options are the flags of the command.
type options struct {
	listen      string
	probeListen string
	readListen  string
	page        bool
	tls         serve.MutualTLS

	leaderElect    bool
	leaseName      string
	leaseNamespace string
	identity       string

	schedulerLease string
	chooseNode     bool

	domain      string
	policy      string
	nodePolicy  string
	assumeLimit time.Duration
	selfCheck   time.Duration
	decisions   int

	kube        daemon.Kube
	log         daemon.Log
	showVersion bool

	flags *pflag.FlagSet
}

func defaultOptions() options {
	return options{
		listen:         "127.0.0.1:8010",
		probeListen:    ":8011",
		readListen:     "127.0.0.1:8013",
		tls:            serve.MutualTLS{ClientName: "gpumem-kube-scheduler"},
		leaseName:      "gpumem-extender",
		leaseNamespace: os.Getenv("POD_NAMESPACE"),
		identity:       os.Getenv("POD_NAME"),
		schedulerLease: "kube-system/kube-scheduler",
		domain:         api.DefaultDomain,
		policy:         "binpack",
		assumeLimit:    30 * time.Second,
		selfCheck:      time.Minute,
		decisions:      1000,
		kube:           daemon.Kube{QPS: 500, Burst: 1000},
		log:            daemon.DefaultLog(),
	}
}

func (o *options) parse(args []string, stdout io.Writer) error {
	f := pflag.NewFlagSet("gpumem-extender", pflag.ContinueOnError)
	f.StringVar(&o.listen, "listen", o.listen, "`address` on which kube-scheduler calls filter, prioritize, preempt and bind; loopback only, unless clients must show a certificate")
	f.StringVar(&o.tls.CertFile, "tls-cert-file", o.tls.CertFile, "`file` with the certificate to serve with, PEM; read again for each connection")
	f.StringVar(&o.tls.KeyFile, "tls-private-key-file", o.tls.KeyFile, "`file` with its key, PEM")
	f.StringVar(&o.tls.ClientCAFile, "tls-client-ca-file", o.tls.ClientCAFile, "`file` with the authorities that sign kube-scheduler's certificate, PEM")
	f.StringVar(&o.tls.ClientName, "tls-client-name", o.tls.ClientName, "common `name` that kube-scheduler's certificate must have")
	f.BoolVar(&o.leaderElect, "leader-elect", o.leaderElect, "answer only while this replica leads: where several serve one kube-scheduler")
	f.StringVar(&o.leaseName, "leader-elect-lease-name", o.leaseName, "`name` of the Lease by which replicas choose the leader")
	f.StringVar(&o.leaseNamespace, "leader-elect-lease-namespace", o.leaseNamespace, "`namespace` of the Lease; default: the environment variable POD_NAMESPACE")
	f.StringVar(&o.identity, "leader-elect-identity", o.identity, "`name` of this replica in the Lease; default: the environment variable POD_NAME")
	f.StringVar(&o.schedulerLease, "scheduler-lease", o.schedulerLease, "`namespace/name` of the Lease of the kube-schedulers that each have an extender like this one; not used with --leader-elect")
	f.BoolVar(&o.chooseNode, "choose-node", o.chooseNode, "answer filter with the best node alone, so that what kube-scheduler's own plugins prefer does not count; otherwise its scores and this extender's add up")
	f.StringVar(&o.probeListen, "probe-listen", o.probeListen, "`address` of /healthz, /readyz, /metrics and /version")
	f.StringVar(&o.readListen, "read-listen", o.readListen, "`address` of what people read: the last decisions, and the page; loopback only, to be reached by kubectl port-forward")
	f.BoolVar(&o.page, "page", o.page, "serve a page that shows the fleet at --read-listen")
	f.StringVar(&o.domain, "resource-domain", o.domain, "`domain` of the extended resources and annotations")
	f.StringVar(&o.policy, "policy", o.policy, "`policy` by which GPUs are chosen for pods that name none: binpack or spread")
	f.StringVar(&o.nodePolicy, "node-policy", o.nodePolicy, "`policy` by which nodes are chosen for them: binpack or spread; empty: that of --policy")
	f.DurationVar(&o.assumeLimit, "assume-limit", o.assumeLimit, "how long a placement whose outcome is unknown is kept before the API server is asked")
	f.DurationVar(&o.selfCheck, "self-check-interval", o.selfCheck, "time between two comparisons of the cache with the API server; what differs in both is logged, counted and put right; 0: none")
	f.IntVar(&o.decisions, "decisions", o.decisions, "`number` of pods whose last decisions are kept, with what was considered, for kubectl inspect gpumem explain; 0: none")
	o.kube.AddFlags(f)
	o.log.AddFlags(f)
	f.BoolVar(&o.showVersion, "version", false, "print the version and end")
	o.flags = f
	return daemon.Parse(f, `gpumem-extender places pods that ask for GPU memory, as an extender of kube-scheduler.

Usage: gpumem-extender [flags]
       gpumem-extender cleanup [flags]   take away what it has written, after it was uninstalled`, args, stdout)
}

// config is what the flags say, read once.
type config struct {
	options
	names    api.Names
	policies ranking.Policies     // of pods that name none
	lease    types.NamespacedName // of those of whom one asks, or is asked
}

// complete reads the flags, and reports all mistakes at once.
func (o *options) complete() (config, error) {
	c := config{options: *o, lease: types.NamespacedName{Namespace: o.leaseNamespace, Name: o.leaseName}}
	if !o.leaderElect {
		c.lease.Namespace, c.lease.Name, _ = strings.Cut(o.schedulerLease, "/")
	}
	var domain, policies error
	if c.names, domain = api.NewNames(o.domain); domain != nil {
		domain = fmt.Errorf("--resource-domain: %w", domain)
	}
	c.policies, policies = o.policies()
	return c, errors.Join(c.validateVerbs(), c.validateReplica(), domain, policies, c.validateTimes(), o.kube.Validate(), o.log.Validate())
}

// validateVerbs says what is wrong with where and how kube-scheduler is answered.
func (c *config) validateVerbs() error {
	var errs []error
	if host, _, err := net.SplitHostPort(c.listen); err != nil {
		errs = append(errs, fmt.Errorf("--listen: %w", err))
	} else if ip := net.ParseIP(host); !c.withTLS() && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		errs = append(errs, fmt.Errorf("--listen: %q is not a loopback address, and anyone who reaches it can bind pods; give the --tls-… files, or listen on 127.0.0.1", c.listen))
	}
	if c.withTLS() && (c.tls.CertFile == "" || c.tls.KeyFile == "" || c.tls.ClientCAFile == "" || c.tls.ClientName == "") {
		errs = append(errs, errors.New("--tls-cert-file, --tls-private-key-file, --tls-client-ca-file and --tls-client-name: want all of them or no file"))
	}
	return errors.Join(errs...)
}

// validateReplica says what is wrong with the Lease, and with where probes and people are answered.
func (c *config) validateReplica() error {
	var errs []error
	if c.leaderElect && (c.leaseName == "" || c.leaseNamespace == "" || c.identity == "") {
		errs = append(errs, errors.New("--leader-elect: want --leader-elect-lease-name, --leader-elect-lease-namespace and --leader-elect-identity too"))
	}
	if c.lease.Namespace == "" || c.lease.Name == "" {
		errs = append(errs, fmt.Errorf("--scheduler-lease: %q, want namespace/name", c.schedulerLease))
	}
	if _, _, err := net.SplitHostPort(c.probeListen); err != nil {
		errs = append(errs, fmt.Errorf("--probe-listen: %w", err))
	}
	if !isLoopback(c.readListen) {
		errs = append(errs, fmt.Errorf("--read-listen: %q is not an address of the loopback, and nobody is asked for credentials there", c.readListen))
	}
	return errors.Join(errs...)
}

// validateTimes says what is wrong with times and numbers.
func (c *config) validateTimes() error {
	var errs []error
	if least := 2 * controller.BindDeadline; c.assumeLimit < least {
		errs = append(errs, fmt.Errorf("--assume-limit: %s is less than %s, within which a binding may still land", c.assumeLimit, least))
	}
	if c.selfCheck != 0 && c.selfCheck < time.Second {
		errs = append(errs, fmt.Errorf("--self-check-interval: %s: want 1s or more, or 0 for none", c.selfCheck))
	}
	if c.decisions < 0 {
		errs = append(errs, fmt.Errorf("--decisions: %d, want 0 or more", c.decisions))
	}
	return errors.Join(errs...)
}

// withTLS reports whether clients are to show a certificate.
func (o *options) withTLS() bool {
	return o.tls.CertFile != "" || o.tls.KeyFile != "" || o.tls.ClientCAFile != ""
}

// policies reads what the flags say of pods that name no policy.
func (o *options) policies() (ranking.Policies, error) {
	gpus, err := readPolicy("policy", o.policy)
	if o.nodePolicy == "" {
		return ranking.Policies{GPU: gpus}, err
	}
	nodes, nodeErr := readPolicy("node-policy", o.nodePolicy)
	return ranking.Policies{GPU: gpus, Node: nodes}, errors.Join(err, nodeErr)
}

func readPolicy(flag, value string) (placement.Policy, error) {
	policy, err := api.ParseFallback(value)
	if err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	return policy, nil
}

// isLoopback reports whether an address to listen on is of the loopback.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}
