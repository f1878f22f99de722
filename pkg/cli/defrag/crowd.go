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
	"github.com/gpumem/gpumem/pkg/report/reach"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// forced reports whether a plan exists that also evicts pods without a controller.
func (c *crowd) forced(room defrag.Goal, nodes []placement.Node) bool {
	if c.force {
		return false // c already evicts these pods, and has no plan
	}
	everybody := *c
	everybody.force = true
	room.May = everybody.mayGo
	_, ok := everybody.plan(room, nodes)
	return ok
}

// mostPods returns the largest number of pods on one node, which no plan exceeds.
func mostPods(nodes []placement.Node) (most int) {
	for _, n := range nodes {
		most = max(most, len(n.Holdings()))
	}
	return most
}

// unserved returns why no scheduler would place the waiting pod; empty if one would.
func (c *crowd) unserved(names api.Names, schedulers []string) string {
	return cluster.NewPlaces().WaitFacts(names, c.waits).Unserved(schedulers)
}

// crowd has the pods that a plan may evict, and the rules and nodes for them.
type crowd struct {
	nodes   map[string]*v1.Node
	facts   map[string]inspect.NodeFacts // by node
	pods    map[string]*v1.Pod           // by UID
	waits   *v1.Pod                      // nil if the goal is a free GPU
	force   bool
	exclude []string         // namespaces whose pods are not evicted
	policy  placement.Policy // the cluster's

	leaving []placement.Holding // pods that leave the plan's GPUs: evicted or terminating
}

// plan also counts the memory of terminating pods as free if the free memory is not enough.
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
				ending = terminating(at) // the node's sum needs all of them to leave
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

// Reasons why a pod may not be evicted.
const (
	static      = "static"
	alone       = "without a controller"
	ofDaemonSet = "of a DaemonSet"
	important   = "of a higher priority"
	protected   = "whose PodDisruptionBudget allows no eviction"
	excluded    = "of excluded namespaces"
)

// unevictable returns the reason why a pod may not be evicted; empty if it may. A pod without a
// controller would be lost, and only its node can end a static pod.
func (c *crowd) unevictable(pod *v1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	switch {
	case slices.Contains(c.exclude, pod.Namespace):
		return excluded
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

// mayGo reports whether a pod may be evicted. A nominated pod is no candidate, because it holds no
// memory yet.
func (c *crowd) mayGo(h placement.Holding) bool {
	pod := c.pods[h.Pod.UID]
	return pod != nil && !h.Nominated && c.unevictable(pod) == ""
}

// asItFinds returns a node without the memory that is reserved for nominated pods. The waiting pod
// respects only nominated pods that precede it, and a plan that frees a GPU respects all.
func (c *crowd) asItFinds(n placement.Node, req placement.Request) placement.Node {
	if c.waits == nil {
		return decide.Promised(n, c.policy)
	}
	return decide.Reserved(n, api.Ref(c.waits), req, c.policy)
}

// inPeace counts the pods that may not be evicted by reason. If force is true, it suggests --force.
func (c *crowd) inPeace(goal defrag.Goal, force bool) string {
	guarded := preemption.Guarded(goal.Budgets)
	counts := make(map[string]int)
	for uid, pod := range c.pods {
		why := c.unevictable(pod)
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
	for _, why := range []string{alone, ofDaemonSet, static, important, protected, excluded} {
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
	return "; pods that may not be evicted: " + strings.Join(out, ", ")
}

// suits reports whether a node would accept a pod. A reference without a UID stands for the waiting pod
// or, if the goal is a free GPU, for any pod.
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

// what names the goal of the plan.
func (c *crowd) what() string {
	if c.waits != nil {
		return fmt.Sprintf("pod %s/%s", c.waits.Namespace, c.waits.Name)
	}
	return "a GPU without pods"
}

func (c *crowd) print(w io.Writer, plan defrag.Plan, nodes []placement.Node, req placement.Request) error {
	at := nodes[slices.IndexFunc(nodes, func(n placement.Node) bool { return n.Name == plan.Node })]
	var indexes []string
	for _, d := range at.Devices {
		if slices.Contains(plan.Assignment.Devices(), d.UUID) {
			indexes = append(indexes, fmt.Sprintf("GPU%d", d.Index))
		}
	}
	fmt.Fprintf(w, "Plan for %s: %s of node %s\n", c.what(), strings.Join(indexes, ", "), plan.Node)
	if len(plan.Moves) == 0 {
		when := "as it is"
		if len(c.leaving) > 0 {
			when = "once these pods have terminated: " + named(c.leaving)
		}
		fmt.Fprintf(w, "No pod has to be evicted %s.\n", when)
		if c.waits != nil && len(c.leaving) == 0 {
			if _, refusal := decide.Decide(at, api.Ref(c.waits), req, c.policy); refusal != nil {
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
		fmt.Fprintf(rows, "%s\t%s\t%s\t%s\t%s\t%s\n", m.Pod.Pod.Namespace, m.Pod.Pod.Name, controller(metav1.GetControllerOf(c.pods[m.Pod.Pod.UID])), reasons.Amount(m.Pod.Request.Units(), at.UnitMiB), m.From, to)
	}
	return rows.Flush()
}

func controller(owner *metav1.OwnerReference) string {
	if owner == nil {
		return "<none>"
	}
	return table.Clean(owner.Kind + "/" + owner.Name) // users can write any text here
}

func named(holdings []placement.Holding) string {
	var names []string
	for _, h := range holdings {
		names = append(names, h.Pod.String())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
