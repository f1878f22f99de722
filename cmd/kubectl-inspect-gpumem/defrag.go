package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/component-helpers/scheduling/corev1"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/decide"
	"github.com/gpumem/gpumem/pkg/defrag"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/placement"
	"github.com/gpumem/gpumem/pkg/preemption"
	"github.com/gpumem/gpumem/pkg/reach"
)

// defragmentation is what the flags of defrag say.
type defragmentation struct {
	*options
	gpus  int // to free, on one node
	most  int // evictions
	force bool
	apply bool

	timeout time.Duration // to wait for the pod that room is made for, or until those that are evicted are elsewhere
}

func newDefragCommand(o *options) *cobra.Command {
	d := &defragmentation{options: o, gpus: 1, most: 4, timeout: 5 * time.Minute}
	cmd := &cobra.Command{
		Use:   "defrag [POD]",
		Short: "Plan the fewest evictions that make a waiting pod fit, or free a GPU",
		Long: `Plan the fewest evictions that make a waiting pod fit or, without one, free a GPU.

A pod is evicted only when there is room for it elsewhere, or when the waiting
pod may preempt it: it has a higher priority, and the pod waits then. Those of
higher priority stay, those of DaemonSets, those whose PodDisruptionBudget allows
no eviction, and those without a controller, which nothing would make again.

Nothing is evicted without --apply. It keeps the room for POD, from all pods of its priority
or a lower one, until POD has a node, for which it waits. Without POD it keeps new pods off the GPUs (as
cordon does) until the evicted pods are elsewhere. The plan counts GPU memory and cores, the nodes'
CPU, taints and node affinity; where the pods go is kube-scheduler's to say.`,
		Example: `  # Whom to evict so that the pod ml/train, which waits, fits
  kubectl inspect gpumem defrag ml/train

  # Empty two GPUs of one node, and do it
  kubectl inspect gpumem defrag --gpus 2 --apply`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.prepare(nil, d.validate); err != nil {
				return err
			}
			return d.run(cmd.Context(), args)
		},
	}
	o.sayNamespace(cmd, namespaceOfPod)
	f := cmd.Flags()
	f.IntVar(&d.gpus, "gpus", d.gpus, "How many GPUs to free, on one node")
	f.IntVar(&d.most, "max-evictions", d.most, "How many pods the plan may evict, 32 at most: there is none where more would have to go")
	f.BoolVar(&d.force, "force", false, "Evict pods too that nothing will make again")
	f.BoolVar(&d.apply, "apply", false, "Evict the pods of the plan")
	f.DurationVar(&d.timeout, "timeout", d.timeout, "How long to keep the room for POD, and to wait for it to have a node; without it, for evicted pods to be gone and those in their place to have one")
	return cmd
}

func (d *defragmentation) validate() error {
	var errs []error
	if d.gpus < 1 || d.gpus > 16 {
		errs = append(errs, fmt.Errorf("--gpus is %d, want 1 to 16", d.gpus))
	}
	if d.most < 0 || d.most > 32 {
		errs = append(errs, fmt.Errorf("--max-evictions is %d, want 0 to 32", d.most))
	}
	return errors.Join(append(errs, d.Validate())...)
}

func (d *defragmentation) run(ctx context.Context, args []string) error {
	c := &crowd{nodes: make(map[string]*v1.Node), pods: make(map[string]*v1.Pod), force: d.force}
	room := defrag.Goal{Most: d.most, May: c.mayGo, Suits: c.suits}
	var err error
	if room.Request, err = d.request(ctx, c, args); err != nil {
		return err
	}
	room.Empty = c.waits == nil
	room.Displace = c.waits != nil && (c.waits.Spec.PreemptionPolicy == nil || *c.waits.Spec.PreemptionPolicy != v1.PreemptNever)
	nodes, facts, err := d.cluster.Load(ctx, cluster.Selection{
		EachNode: func(node *v1.Node) { c.nodes[node.Name] = node },
		EachPod:  func(pod *v1.Pod) { c.pods[string(pod.UID)] = pod },
	})
	if err != nil {
		return err
	}
	c.facts = facts.Nodes
	if err := cluster.NeedsPods("there is no plan", facts); err != nil {
		return err
	}
	d.learnPolicy(ctx, &facts)
	c.policy, room.Fallback = facts.Policy, facts.Policy
	if room.Budgets, err = d.budgets(ctx, c); err != nil {
		return err
	}
	for i, n := range nodes {
		nodes[i] = c.asItFinds(n, room.Request)
	}
	plan, ok := c.plan(room, nodes)
	if !ok {
		return d.noPlan(c, room, nodes)
	}
	if err := c.print(d.Out, plan, nodes, room.Request, d.gpus); err != nil {
		return err
	}
	return d.carryOut(ctx, c, plan, facts.Schedulers)
}

// carryOut does what is to be done about a plan, which may be nothing.
func (d *defragmentation) carryOut(ctx context.Context, c *crowd, plan defrag.Plan, schedulers []string) error {
	if len(plan.Moves) == 0 && (len(c.leaving) == 0 || c.waits == nil || !d.apply) {
		return nil
	}
	if !d.apply {
		fmt.Fprintln(d.Out, "Nobody was evicted: --apply does it.")
		return nil
	}
	if c.waits == nil {
		return d.free(ctx, c, plan)
	}
	if unserved := c.unserved(d.names, schedulers); unserved != "" {
		return fmt.Errorf("nobody was evicted for pod %s/%s: %s", c.waits.Namespace, c.waits.Name, unserved)
	}
	return d.makeWay(ctx, c, plan)
}

// noPlan says why there is none.
func (d *defragmentation) noPlan(c *crowd, room defrag.Goal, nodes []placement.Node) error {
	short := fmt.Sprintf("at most %d evictions (--max-evictions) make no room", d.most)
	if room.Hopeless(nodes) || d.most >= mostPods(nodes) {
		short = "no evictions make room"
	}
	overdrawn := ""
	if n, ok := room.Overdrawn(nodes); ok {
		if refusal := inspect.Overdraws(room.Request, n); refusal != nil {
			overdrawn = "; node " + n.Name + ": " + refusal.Message
		}
	}
	return fmt.Errorf("%s for %s%s%s", short, c.what(d.gpus), overdrawn, c.inPeace(room, c.forced(room, nodes)))
}

// forced reports whether there is a plan where pods without a controller are evicted too.
func (c *crowd) forced(room defrag.Goal, nodes []placement.Node) bool {
	if c.force {
		return false // they are, and there is none
	}
	everybody := *c
	everybody.force = true
	room.May = everybody.mayGo
	_, ok := everybody.plan(room, nodes)
	return ok
}

// mostPods returns how many pods the node has that has the most: more are never evicted.
func mostPods(nodes []placement.Node) (most int) {
	for _, n := range nodes {
		most = max(most, len(n.Holdings()))
	}
	return most
}

// request is what to make room for: the waiting pod, or pods that are alone on
// their GPUs, for which everybody would make room.
func (d *defragmentation) request(ctx context.Context, c *crowd, args []string) (placement.Request, error) {
	if len(args) == 0 {
		return placement.Request{
			Containers: []placement.Container{{Kind: placement.App, Units: gpu.Units(d.gpus)}},
			Count:      d.gpus, Policy: placement.Exclusive, Priority: math.MaxInt32,
		}, nil
	}
	var err error
	if c.waits, err = d.getPod(ctx, args[0]); err != nil {
		return placement.Request{}, err
	}
	namespace, name := c.waits.Namespace, c.waits.Name
	if c.waits.Spec.NodeName != "" {
		return placement.Request{}, fmt.Errorf("pod %s/%s does not wait: it is on node %s", namespace, name, c.waits.Spec.NodeName)
	}
	if d.apply && roomKept(c.waits) {
		if err := d.keepNone(ctx, c.waits); err != nil { // a run before this one was killed
			return placement.Request{}, err
		}
	}
	req, err := d.names.Request(c.waits)
	if err == nil && req.Empty() {
		err = fmt.Errorf("pod %s/%s asks for no %s", namespace, name, d.names.GPUMem())
	}
	return req, err
}

// budgets reads the PodDisruptionBudgets that the pods are under.
func (d *defragmentation) budgets(ctx context.Context, c *crowd) ([]preemption.Budget, error) {
	list, err := d.client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
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
	return api.Budgets(budgets, pods), nil
}

// free evicts the pods of a plan that frees GPUs. These are cordoned until the pods that
// come in their place are elsewhere: they would take them otherwise, which are free first.
func (d *defragmentation) free(ctx context.Context, c *crowd, plan defrag.Plan) (err error) {
	for _, id := range plan.Assignment.Devices() {
		if _, _, err := d.write(ctx, plan.Node, string(id), true); err != nil {
			return err
		}
		defer func() {
			// An interrupt ends the waiting, and not this.
			_, _, e := d.write(context.WithoutCancel(ctx), plan.Node, string(id), false)
			err = errors.Join(err, e)
		}()
	}
	if err := d.evict(ctx, plan); err != nil {
		return err
	}
	var waitsFor string
	late, err := d.poll(ctx, func(ctx context.Context) (bool, error) {
		yet, err := d.waitsFor(ctx, c, plan)
		if err == nil {
			waitsFor = yet
		}
		return err == nil && yet == "", lasting(err)
	})
	if late {
		return fmt.Errorf("the GPUs were not freed within %s: %s", d.timeout, waitsFor)
	}
	return err
}

// poll looks until something is so, or reports that it is too late for that.
func (d *defragmentation) poll(ctx context.Context, so wait.ConditionWithContextFunc) (late bool, err error) {
	limited, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	switch err = wait.PollUntilContextCancel(limited, look, true, so); {
	case ctx.Err() != nil && err != nil:
		return false, errors.New("interrupted")
	case limited.Err() != nil && err != nil: // however the client words it
		return true, nil
	default:
		return false, err
	}
}

// evict stops at the first pod that may not go.
func (d *defragmentation) evict(ctx context.Context, plan defrag.Plan) error {
	for i, m := range plan.Moves {
		uid := types.UID(m.Pod.Pod.UID)
		err := d.client.PolicyV1().Evictions(m.Pod.Pod.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: m.Pod.Pod.Namespace, Name: m.Pod.Pod.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
		})
		switch {
		case apierrors.IsTooManyRequests(err):
			return fmt.Errorf("pod %s may not be evicted now; evicted: %d of %d: %w", m.Pod.Pod, i, len(plan.Moves), err)
		case err != nil:
			return fmt.Errorf("pod %s; evicted: %d of %d: %w", m.Pod.Pod, i, len(plan.Moves), err)
		}
		fmt.Fprintf(d.Out, "pod/%s evicted\n", m.Pod.Pod.Name)
	}
	return nil
}

// waitsFor says what is yet to come until the evicted pods are gone and their controllers have
// as many pods on nodes as before; nothing when they are.
func (d *defragmentation) waitsFor(ctx context.Context, c *crowd, plan defrag.Plan) (string, error) {
	for _, m := range plan.Moves {
		list, err := d.client.CoreV1().Pods(m.Pod.Pod.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		owner := metav1.GetControllerOf(c.pods[m.Pod.Pod.UID])
		now := 0
		for i := range list.Items {
			pod := &list.Items[i]
			if string(pod.UID) == m.Pod.Pod.UID {
				return fmt.Sprintf("pod %s has not ended yet", m.Pod.Pod), nil
			}
			now += placedBy(owner, pod)
		}
		before := 0
		for _, pod := range c.pods {
			before += placedBy(owner, pod)
		}
		if now < before {
			return fmt.Sprintf("%s of namespace %s has %d pods on nodes, and had %d", controller(owner), m.Pod.Pod.Namespace, now, before), nil
		}
	}
	return "", nil
}

// placedBy returns 1 for a pod of this controller that is on a node to stay, else 0.
func placedBy(owner *metav1.OwnerReference, pod *v1.Pod) int {
	of := metav1.GetControllerOf(pod)
	if owner == nil || of == nil || of.UID != owner.UID || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || api.Terminal(pod) {
		return 0
	}
	return 1
}

// unserved says why nobody would place the pod that room is made for; empty: somebody would.
func (c *crowd) unserved(names api.Names, schedulers []string) string {
	return cluster.NewPlaces().WaitFacts(names, c.waits).Unserved(schedulers)
}

// crowd is who could move, and where to.
type crowd struct {
	nodes  map[string]*v1.Node
	facts  map[string]inspect.NodeFacts // by node
	pods   map[string]*v1.Pod           // by UID
	waits  *v1.Pod                      // nil: a GPU is to be freed
	force  bool
	policy placement.Policy // the cluster's

	leaving []placement.Holding // the GPUs of the plan: those that are to be evicted, and those that end already
}

// plan counts pods that end already as gone, where it is not enough what is free now.
func (c *crowd) plan(goal defrag.Goal, nodes []placement.Node) (plan defrag.Plan, ok bool) {
	var ending []placement.Holding // on the node of the plan
	if plan, ok = goal.Plan(nodes); !ok || len(plan.Moves) > 0 {
		left := make([]placement.Node, 0, len(nodes))
		for _, n := range nodes {
			left = append(left, n.Without(terminating(n)))
		}
		if plan, ok = goal.Plan(left); ok {
			at := nodes[slices.IndexFunc(nodes, func(n placement.Node) bool { return n.Name == plan.Node })]
			ending = slices.DeleteFunc(terminating(at), func(h placement.Holding) bool { return !onGPUs(plan, h) })
			if !goal.Empty && !at.Without(slices.Concat(ending, evicted(plan))).InSum(goal.Request) {
				ending = terminating(at) // of which the node's sum is short
			}
		}
	}
	c.leaving = append(evicted(plan), ending...)
	return plan, ok
}

func evicted(plan defrag.Plan) (out []placement.Holding) {
	for _, m := range plan.Moves {
		out = append(out, m.Pod)
	}
	return out
}

func terminating(n placement.Node) []placement.Holding {
	return slices.DeleteFunc(n.Holdings(), func(h placement.Holding) bool { return !h.Terminating })
}

// onGPUs reports whether a pod is on a GPU of a plan.
func onGPUs(plan defrag.Plan, h placement.Holding) bool {
	return slices.ContainsFunc(h.Assignment.Devices(), func(id gpu.UUID) bool { return slices.Contains(plan.Assignment.Devices(), id) })
}

// Why pods are left in peace.
const (
	static      = "static"
	alone       = "without a controller"
	ofDaemonSet = "of a DaemonSet"
	important   = "of a higher priority"
	protected   = "whose PodDisruptionBudget allows no eviction"
)

// stays says why a pod is not to be evicted: nobody would make it again, or its
// node alone. It is empty for one that may go.
func (c *crowd) stays(pod *v1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	switch {
	case pod.Annotations[v1.MirrorPodAnnotationKey] != "":
		return static
	case owner == nil && !c.force:
		return alone
	case owner != nil && owner.Kind == "DaemonSet":
		return ofDaemonSet
	default:
		return ""
	}
}

// mayGo reports whether somebody will make a pod again that is evicted.
func (c *crowd) mayGo(h placement.Holding) bool {
	pod := c.pods[h.Pod.UID]
	return pod != nil && !h.Nominated && c.stays(pod) == ""
}

// asItFinds returns a node as the pod finds it that room is made for: what is kept for others
// is no room. A GPU that is to be free comes after each of them.
func (c *crowd) asItFinds(n placement.Node, req placement.Request) placement.Node {
	if c.waits == nil {
		return decide.Promised(n, c.policy)
	}
	return decide.Reserved(n, api.Ref(c.waits), req, c.policy)
}

// inPeace says which pods were left in peace, and why, and whether to force evictions
// helps.
func (c *crowd) inPeace(goal defrag.Goal, force bool) string {
	guarded := preemption.Guarded(goal.Budgets)
	counts := make(map[string]int)
	for uid, pod := range c.pods {
		why := c.stays(pod)
		switch {
		case pod.Spec.NodeName == "":
			continue
		case corev1.PodPriority(pod) > goal.Request.Priority:
			why = important
		case why != "":
		case guarded[uid]:
			why = protected
		}
		counts[why]++
	}
	var out []string
	for _, why := range []string{alone, ofDaemonSet, static, important, protected} {
		n := counts[why]
		if why == alone && force {
			why += " (--force evicts them)"
		}
		if n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, why))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "; pods that were left in peace: " + strings.Join(out, ", ")
}

// suits reports whether a node would take a pod, or any pod for a GPU that is to
// be free.
func (c *crowd) suits(ref placement.PodRef, nodeName string) bool {
	node, pod := c.nodes[nodeName], c.pods[ref.UID]
	if ref.UID == "" {
		pod = c.waits
	}
	if node == nil || c.facts[nodeName].Refuses != nil {
		return false
	}
	if pod == nil {
		return true
	}
	return reach.KeepsOff(pod, node) == nil
}

// what says what room is made for.
func (c *crowd) what(gpus int) string {
	switch {
	case c.waits != nil:
		return fmt.Sprintf("pod %s/%s", c.waits.Namespace, c.waits.Name)
	case gpus == 1:
		return "a GPU without pods"
	default:
		return fmt.Sprintf("%d GPUs without pods on one node", gpus)
	}
}

func (c *crowd) print(w io.Writer, plan defrag.Plan, nodes []placement.Node, req placement.Request, gpus int) error {
	at := nodes[slices.IndexFunc(nodes, func(n placement.Node) bool { return n.Name == plan.Node })]
	var indexes []string
	for _, d := range at.Devices {
		if slices.Contains(plan.Assignment.Devices(), d.UUID) {
			indexes = append(indexes, fmt.Sprintf("GPU%d", d.Index))
		}
	}
	fmt.Fprintf(w, "Room for %s: %s of node %s\n", c.what(gpus), strings.Join(indexes, ", "), plan.Node)
	if len(plan.Moves) == 0 {
		when := "as it is"
		if len(c.leaving) > 0 {
			when = "once " + named(c.leaving) + ", which ends already, is gone"
		}
		fmt.Fprintf(w, "There is room %s: nobody has to be evicted.\n", when)
		if c.waits != nil && len(c.leaving) == 0 {
			if _, refusal := decide.Decide(at, api.Ref(c.waits), req, c.policy); refusal != nil {
				fmt.Fprintf(w, "For now the pod %s.\n", refusal.Message)
			}
		}
		return nil
	}
	fmt.Fprintln(w)
	table := printers.GetNewTabWriter(w)
	fmt.Fprintln(table, "NAMESPACE\tPOD\tCONTROLLER\tHOLDS\tFROM\tROOM ON")
	for _, m := range plan.Moves {
		to := m.To
		if to == "" {
			to = "<none: it will wait>"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", m.Pod.Pod.Namespace, m.Pod.Pod.Name, controller(metav1.GetControllerOf(c.pods[m.Pod.Pod.UID])), gpu.Format(m.Pod.Request.Units(), at.UnitMiB), m.From, to)
	}
	return table.Flush()
}

func controller(owner *metav1.OwnerReference) string {
	if owner == nil {
		return "<none>"
	}
	return owner.Kind + "/" + owner.Name
}
