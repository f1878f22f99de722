package defrag

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/core/defrag"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/preemption"
	"github.com/gpumem/gpumem/pkg/kube/evict"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// Options are the options of the command defrag.
type Options struct {
	*cmdutil.Factory
	maxEvictions int
	force        bool
	exclude      []string // namespaces whose pods are not evicted
	apply        bool

	timeout time.Duration // for the waiting pod to get a node, or for evicted pods to end and be replaced

	cluster *cluster.Reader
	args    []string // the pod; empty to free a GPU
}

// NewCommand returns the command defrag.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	o := &Options{Factory: f, maxEvictions: 4, timeout: 5 * time.Minute}
	cmd := &cobra.Command{
		Use:   "defrag [POD]",
		Short: "Plan the fewest evictions for a waiting pod, or to free a GPU",
		Long: `Plan the fewest evictions that make POD fit. Without POD, plan to free a GPU.

The plan evicts a pod only if it fits on another node, or if POD may preempt it
because of a higher priority; the evicted pod then waits. It never evicts pods
of a higher priority, pods of DaemonSets, pods whose PodDisruptionBudget allows
no eviction, and, without --force, pods that have no controller.

Without --apply, nothing is evicted. With --apply and POD, the command reserves
the GPUs against all pods of the same or a lower priority, evicts, and waits
until POD has a node; the reservation ends within a minute after the command.
With --apply and no POD, it cordons the GPUs until the replacements of the
evicted pods have nodes. The plan considers GPU memory and cores, and the CPU,
taints and affinity of nodes; kube-scheduler chooses the replacements' nodes.`,
		Example: `  # Which pods to evict so that the waiting pod ml/train fits
  kubectl inspect gpumem defrag ml/train

  # Empty a GPU
  kubectl inspect gpumem defrag --apply`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	f.SetNamespaceHelp(cmd, cmdutil.NamespaceOfPod)
	flags := cmd.Flags()
	flags.IntVar(&o.maxEvictions, "max-evictions", o.maxEvictions, "Maximum number of evictions in the plan, up to 32")
	flags.BoolVar(&o.force, "force", false, "Evict pods without a controller too")
	flags.StringSliceVar(&o.exclude, "exclude-namespaces", nil, "Evict no pod of these namespaces")
	flags.BoolVar(&o.apply, "apply", false, "Evict the pods of the plan")
	flags.DurationVar(&o.timeout, "timeout", o.timeout, "Time limit for POD to be scheduled; without POD, for evicted pods to terminate and their replacements to be scheduled")
	return cmd
}

// Complete stores the name of the pod and connects to the cluster.
func (o *Options) Complete(args []string) (err error) {
	o.args = args
	o.cluster, err = o.Connect()
	return err
}

// Validate returns an error if a flag is invalid.
func (o *Options) Validate() error {
	if o.maxEvictions < 0 || o.maxEvictions > 32 {
		return fmt.Errorf("--max-evictions is %d, want 0 to 32", o.maxEvictions)
	}
	return nil
}

// Run prints the plan and, with --apply, carries it out.
func (o *Options) Run(ctx context.Context) error {
	c := &evictionPlanner{nodes: make(map[string]*v1.Node), pods: make(map[string]*v1.Pod), force: o.force, exclude: o.exclude}
	goal := defrag.Goal{MaxEvictions: o.maxEvictions, IsEvictable: c.isEvictable, NodeAccepts: c.nodeAccepts}
	var err error
	if goal.Request, err = o.request(ctx, c); err != nil {
		return err
	}
	goal.Empty = c.waitingPod == nil
	goal.Displace = c.waitingPod != nil && (c.waitingPod.Spec.PreemptionPolicy == nil || *c.waitingPod.Spec.PreemptionPolicy != v1.PreemptNever)
	nodes, facts, err := o.cluster.Load(ctx, cluster.Selection{
		EachNode: func(node *v1.Node) { c.nodes[node.Name] = node },
		EachPod: func(pod *v1.Pod) {
			if o.cluster.Names.Asks(pod) { // skip pods with claims: pods without claims cannot use their memory
				c.pods[string(pod.UID)] = pod
			}
		},
	})
	if err != nil {
		return err
	}
	c.facts = facts.Nodes
	if err := cluster.RequirePods("plan evictions", facts); err != nil {
		return err
	}
	o.ReadPolicy(ctx, o.cluster, &facts)
	c.policy, goal.Fallback = facts.Policy, facts.Policy
	if goal.Budgets, err = o.budgets(ctx, c); err != nil {
		return err
	}
	for i, n := range nodes {
		nodes[i] = c.withReservations(n, goal.Request)
	}
	plan, ok := c.plan(goal, nodes)
	if !ok {
		return o.noPlanError(c, goal, nodes)
	}
	if err := c.print(o.Out, plan, nodes, goal.Request); err != nil {
		return err
	}
	return o.carryOut(ctx, c, plan, facts.Schedulers)
}

// carryOut executes a plan with --apply. Even without evictions, it reserves the plan's GPUs for the waiting
// pod if terminating pods are still on them.
func (o *Options) carryOut(ctx context.Context, c *evictionPlanner, plan defrag.Plan, schedulers []string) error {
	if len(plan.Moves) == 0 && (len(c.leaving) == 0 || c.waitingPod == nil || !o.apply) {
		return nil
	}
	if !o.apply {
		fmt.Fprintln(o.Out, "Nothing was evicted: --apply carries out the plan.")
		return nil
	}
	if c.waitingPod == nil {
		return o.freeGPUs(ctx, c, plan)
	}
	if unserved := c.unservedReason(o.cluster.Names, schedulers); unserved != "" {
		return fmt.Errorf("nothing was evicted for pod %s/%s: %s", c.waitingPod.Namespace, c.waitingPod.Name, unserved)
	}
	return o.evictForWaitingPod(ctx, c, plan)
}

// noPlanError returns an error that explains why no plan exists.
func (o *Options) noPlanError(c *evictionPlanner, goal defrag.Goal, nodes []placement.Node) error {
	outcome := fmt.Sprintf("%d evictions (--max-evictions) are too few", o.maxEvictions)
	if goal.IsHopeless(nodes) || o.maxEvictions >= maxPodsPerNode(nodes) {
		outcome = "no evictions are enough"
	}
	overdrawn := ""
	if n, ok := goal.Overdrawn(nodes); ok {
		if refusal := inspect.OverdrawnRefusal(goal.Request, n); refusal != nil {
			overdrawn = "; node " + n.Name + ": " + reasons.Refusal(refusal)
		}
	}
	return fmt.Errorf("%s for %s%s%s", outcome, c.goalName(), overdrawn, c.countUnevictable(goal, c.needsForce(goal, nodes)))
}

// request returns the request of the waiting pod. Without a waiting pod, it returns a request for a whole GPU
// with the highest priority.
func (o *Options) request(ctx context.Context, c *evictionPlanner) (placement.Request, error) {
	if len(o.args) == 0 {
		return placement.Request{
			Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: 1}),
			Count:      1, Policy: placement.Exclusive, Priority: math.MaxInt32,
		}, nil
	}
	var err error
	if c.waitingPod, err = o.GetPod(ctx, o.cluster, o.args[0]); err != nil {
		return placement.Request{}, err
	}
	namespace, name := c.waitingPod.Namespace, c.waitingPod.Name
	if c.waitingPod.Spec.NodeName != "" {
		return placement.Request{}, fmt.Errorf("pod %s/%s does not wait: it is on node %s", namespace, name, c.waitingPod.Spec.NodeName)
	}
	req, err := o.cluster.Names.Request(c.waitingPod)
	if err == nil && req.Empty() {
		err = fmt.Errorf("pod %s/%s asks for no %s", namespace, name, o.cluster.Names.GPUMem())
	}
	return req, err
}

// budgets returns the PodDisruptionBudgets of the pods in c.
func (o *Options) budgets(ctx context.Context, c *evictionPlanner) ([]preemption.Budget, error) {
	list, err := o.cluster.Client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var budgets []*policyv1.PodDisruptionBudget
	for i := range list.Items {
		budgets = append(budgets, &list.Items[i])
	}
	var pods []*v1.Pod
	for _, pod := range c.pods {
		pods = append(pods, pod)
	}
	return evict.Limits(budgets, pods), nil
}
