package service

import (
	"errors"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/process/daemon"
	"github.com/gpumem/gpumem/pkg/report/page"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
)

// Config contains the flags that both processes have.
type Config struct {
	ProbeListen string
	ReadListen  string
	Page        bool
	Cluster     string
	PodMetrics  bool

	Domain      string
	UnitMiB     int64
	Policy      string
	NodePolicy  string
	AssumeLimit time.Duration
	SelfCheck   time.Duration
	Decisions   int
	LabelPods   bool

	Names    api.Names        // set by Complete, from the flags
	Policies ranking.Policies // set by Complete, for pods that name none
}

// AddFlags adds the flags to a flag set, with their default values.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&c.ProbeListen, "probe-listen", ":8011", "`address` of /healthz, /readyz, /metrics and /version")
	f.StringVar(&c.ReadListen, "read-listen", "127.0.0.1:8013", "loopback `address` for the last decisions and the page; people reach it by kubectl port-forward")
	f.BoolVar(&c.Page, "page", false, "serve a page that shows the fleet at --read-listen")
	f.StringVar(&c.Cluster, "cluster-name", "", "`name` of the cluster in the title of the page")
	f.BoolVar(&c.PodMetrics, "pod-metrics", false, "have the metric gpumem_extender_pod_allocated_bytes: one series for each pod that has GPU memory")
	f.StringVar(&c.Domain, "resource-domain", api.DefaultDomain, "`domain` of the extended resources and annotations")
	f.Int64Var(&c.UnitMiB, "unit-mib", 1024, "`MiB` of one unit of GPU memory, as the device plugins have it; nodes with another unit are not ready")
	f.StringVar(&c.Policy, "policy", string(placement.Binpack), "`policy` that chooses GPUs for pods that name none: "+placement.JoinPolicies(placement.ClusterPolicies()))
	f.StringVar(&c.NodePolicy, "node-policy", "", "`policy` that chooses nodes for these pods: "+placement.JoinPolicies(placement.ClusterPolicies())+"; empty: the value of --policy")
	f.DurationVar(&c.AssumeLimit, "assume-limit", 30*time.Second, "how long a placement whose outcome is unknown is kept before the API server is asked")
	f.DurationVar(&c.SelfCheck, "self-check-interval", time.Minute, "time between two comparisons of the cache with the watched objects; a difference in both is logged, counted and corrected; 0: none")
	f.BoolVar(&c.LabelPods, "label-pods", false, "write the model of a pod's GPUs, the part of them that it has, and their speed into labels of the pod when it is bound; from Kubernetes 1.35")
	f.IntVar(&c.Decisions, "decisions", 1000, "`number` of pods whose last decisions, with the nodes considered, are kept for kubectl inspect gpumem explain; 0: none")
}

// Complete parses the flags, and returns all errors at once.
func (c *Config) Complete() error {
	var errs daemon.FlagErrors
	_, _, err := net.SplitHostPort(c.ProbeListen)
	errs.Add("probe-listen", err)
	_, _, err = net.SplitHostPort(c.ReadListen)
	errs.Require(err == nil && page.IsLoopback(c.ReadListen), "read-listen", "%q must be a loopback address: this endpoint is unauthenticated", c.ReadListen)
	c.Names = daemon.ParseFlag(&errs, "resource-domain", api.NewNames, c.Domain)
	c.Names.LabelPods, c.Names.UnitMiB = c.LabelPods, c.UnitMiB
	c.Policies.GPU = daemon.ParseFlag(&errs, "policy", api.ParseFallback, c.Policy)
	if c.NodePolicy != "" {
		c.Policies.Node = daemon.ParseFlag(&errs, "node-policy", api.ParseFallback, c.NodePolicy)
	}
	const shortest = 2 * controller.BindDeadline
	errs.Require(c.AssumeLimit >= shortest, "assume-limit", "%s is less than %s, within which a binding may still land", c.AssumeLimit, shortest)
	errs.Require(c.SelfCheck == 0 || c.SelfCheck >= time.Second, "self-check-interval", "%s: want 1s or more, or 0 for none", c.SelfCheck)
	errs.Require(c.UnitMiB >= 1, "unit-mib", "%d, want 1 or more", c.UnitMiB)
	errs.Require(c.Decisions >= 0, "decisions", "%d, want 0 or more", c.Decisions)
	return errors.Join(errs...)
}
