package defrag

import (
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/component-helpers/scheduling/corev1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/defrag"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/preemption"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/nodefilter"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// needsForce reports whether a plan exists only with --force, which permits evicting pods without a controller.
func (c *evictionPlanner) needsForce(goal defrag.Goal, nodes []placement.Node) bool {
	if c.force {
		return false // no plan exists even with --force
	}
	everybody := *c
	everybody.force = true
	goal.IsEvictable = everybody.isEvictable
	_, ok := everybody.plan(goal, nodes)
	return ok
}

// maxPodsPerNode returns the largest number of pods on one node. No plan has more evictions.
func maxPodsPerNode(nodes []placement.Node) (maxPods int) {
	for _, n := range nodes {
		maxPods = max(maxPods, len(n.Holdings()))
	}
	return maxPods
}

// unservedReason returns the reason why no scheduler would place the waiting pod; empty if a scheduler would.
func (c *evictionPlanner) unservedReason(names api.Names, schedulers []string) string {
	return cluster.NewNodeIndex().WaitFacts(names, c.waitingPod).Unserved(schedulers)
}

// evictionPlanner computes plans. It contains the cluster's nodes and pods, and the rules for evictions.
type evictionPlanner struct {
	nodes      map[string]*v1.Node
	facts      map[string]inspect.NodeFacts // by node
	pods       map[string]*v1.Pod           // by UID
	waitingPod *v1.Pod                      // nil if the goal is a free GPU
	force      bool
	exclude    []string         // namespaces whose pods are not evicted
	policy     placement.Policy // the cluster's

	leaving []placement.Holding // pods, evicted or terminating, that must end before the plan's goal is reached
}

// plan computes a plan. If the free memory is not enough, it counts the memory of terminating pods as free too.
func (c *evictionPlanner) plan(goal defrag.Goal, nodes []placement.Node) (plan defrag.Plan, ok bool) {
	var terminatingPods []placement.Holding // on the node of the plan
	if plan, ok = goal.Plan(nodes); !ok || len(plan.Moves) > 0 {
		nodesAfter := make([]placement.Node, 0, len(nodes))
		for _, n := range nodes {
			nodesAfter = append(nodesAfter, n.Without(terminating(n)))
		}
		if plan, ok = goal.Plan(nodesAfter); ok {
			planNode := nodes[slices.IndexFunc(nodes, func(n placement.Node) bool { return n.Name == plan.Node })]
			terminatingPods = slices.DeleteFunc(terminating(planNode), func(h placement.Holding) bool { return !isOnPlanGPUs(plan, h) })
			if !goal.Empty && !planNode.Without(slices.Concat(terminatingPods, evictedPods(plan))).InSum(goal.Request) {
				terminatingPods = terminating(planNode) // the node's free sum suffices only after the last of them has ended
			}
		}
	}
	c.leaving = append(evictedPods(plan), terminatingPods...)
	return plan, ok
}

func evictedPods(plan defrag.Plan) (out []placement.Holding) {
	for _, m := range plan.Moves {
		out = append(out, m.Pod)
	}
	return out
}

func terminating(n placement.Node) []placement.Holding {
	return slices.DeleteFunc(n.Holdings(), func(h placement.Holding) bool { return !h.Terminating })
}

// isOnPlanGPUs reports whether a pod is on a GPU of a plan.
func isOnPlanGPUs(plan defrag.Plan, h placement.Holding) bool {
	return slices.ContainsFunc(h.Assignment.Devices(), func(id gpu.UUID) bool { return slices.Contains(plan.Assignment.Devices(), id) })
}

// Reasons why a pod must not be evicted.
const (
	staticPod         = "static"
	uncontrolled      = "without a controller"
	daemonSetPod      = "of a DaemonSet"
	higherPriority    = "of a higher priority"
	budgetProtected   = "whose PodDisruptionBudget allows no eviction"
	excludedNamespace = "of excluded namespaces"
)

// unevictableReason returns the reason why a pod must not be evicted, or an empty string. An evicted pod
// without a controller would be lost, and only its node can end a static pod.
func (c *evictionPlanner) unevictableReason(pod *v1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	switch {
	case slices.Contains(c.exclude, pod.Namespace):
		return excludedNamespace
	case pod.Annotations[v1.MirrorPodAnnotationKey] != "":
		return staticPod
	case owner == nil && !c.force:
		return uncontrolled
	case owner != nil && owner.Kind == "DaemonSet":
		return daemonSetPod
	default:
		return ""
	}
}

// isEvictable reports whether a pod may be evicted. A nominated pod is no candidate, because it has no memory yet.
func (c *evictionPlanner) isEvictable(h placement.Holding) bool {
	pod := c.pods[h.Pod.UID]
	return pod != nil && !h.Nominated && c.unevictableReason(pod) == ""
}

// withReservations returns a node without the memory that is reserved for nominated pods. For a waiting pod, it
// subtracts only the memory of nominated pods that precede the pod in the queue. If the goal is a free GPU, it
// subtracts the memory of all nominated pods.
func (c *evictionPlanner) withReservations(n placement.Node, req placement.Request) placement.Node {
	if c.waitingPod == nil {
		return decide.Promised(n, c.policy)
	}
	return decide.Reserved(n, api.Ref(c.waitingPod), req, c.policy)
}

// countUnevictable renders the number of unevictable pods for each reason. If force is true, the text suggests
// --force.
func (c *evictionPlanner) countUnevictable(goal defrag.Goal, force bool) string {
	guarded := preemption.ProtectedPods(goal.Budgets)
	counts := make(map[string]int)
	for uid, pod := range c.pods {
		reason := c.unevictableReason(pod)
		switch {
		case pod.Spec.NodeName == "":
			continue
		case corev1.PodPriority(pod) > goal.Request.Priority:
			reason = higherPriority
		case reason != "":
		case guarded[uid]:
			reason = budgetProtected
		}
		counts[reason]++
	}
	var out []string
	for _, reason := range []string{uncontrolled, daemonSetPod, staticPod, higherPriority, budgetProtected, excludedNamespace} {
		n := counts[reason]
		if reason == uncontrolled && force {
			reason += " (--force evicts them)"
		}
		if n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, reason))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "; pods that may not be evicted: " + strings.Join(out, ", ")
}

// nodeAccepts reports whether a node would accept a pod. A reference without a UID stands for the waiting pod
// or, if the goal is a free GPU, for any pod.
func (c *evictionPlanner) nodeAccepts(ref placement.PodRef, nodeName string) bool {
	node, pod := c.nodes[nodeName], c.pods[ref.UID]
	if ref.UID == "" {
		pod = c.waitingPod
	}
	if node == nil || c.facts[nodeName].Refuses != nil {
		return false
	}
	if pod == nil {
		return true
	}
	return nodefilter.ExclusionRefusal(pod, node) == nil
}

// goalName renders the goal of the plan for messages.
func (c *evictionPlanner) goalName() string {
	if c.waitingPod != nil {
		return fmt.Sprintf("pod %s/%s", c.waitingPod.Namespace, c.waitingPod.Name)
	}
	return "a GPU without pods"
}

func (c *evictionPlanner) print(w io.Writer, plan defrag.Plan, nodes []placement.Node, req placement.Request) error {
	planNode := nodes[slices.IndexFunc(nodes, func(n placement.Node) bool { return n.Name == plan.Node })]
	var indexes []string
	for _, d := range planNode.Devices {
		if slices.Contains(plan.Assignment.Devices(), d.UUID) {
			indexes = append(indexes, fmt.Sprintf("GPU%d", d.Index))
		}
	}
	fmt.Fprintf(w, "Plan for %s: %s of node %s\n", c.goalName(), strings.Join(indexes, ", "), plan.Node)
	if len(plan.Moves) == 0 {
		when := "as it is"
		if len(c.leaving) > 0 {
			when = "once these pods have terminated: " + joinNames(c.leaving)
		}
		fmt.Fprintf(w, "No pod has to be evicted %s.\n", when)
		if c.waitingPod != nil && len(c.leaving) == 0 {
			if _, refusal := decide.Decide(planNode, api.Ref(c.waitingPod), req, c.policy); refusal != nil {
				fmt.Fprintf(w, "For now the pod %s.\n", reasons.Refusal(refusal))
			}
		}
		return nil
	}
	fmt.Fprintln(w)
	rows := printers.GetNewTabWriter(w)
	fmt.Fprintln(rows, "NAMESPACE\tPOD\tCONTROLLER\tHOLDS\tFROM\tFITS ON")
	for _, m := range plan.Moves {
		to := m.To
		if to == "" {
			to = "<none: it will wait>"
		}
		fmt.Fprintf(rows, "%s\t%s\t%s\t%s\t%s\t%s\n", m.Pod.Pod.Namespace, m.Pod.Pod.Name, controllerName(metav1.GetControllerOf(c.pods[m.Pod.Pod.UID])), reasons.Amount(m.Pod.Request.Units(), planNode.UnitMiB), m.From, to)
	}
	return rows.Flush()
}

func controllerName(owner *metav1.OwnerReference) string {
	if owner == nil {
		return "<none>"
	}
	return table.Clean(owner.Kind + "/" + owner.Name) // users can write any text here
}

func joinNames(holdings []placement.Holding) string {
	var names []string
	for _, h := range holdings {
		names = append(names, h.Pod.String())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
