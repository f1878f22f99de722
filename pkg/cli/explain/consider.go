package explain

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// explainWaiting evaluates all nodes in their current state for a waiting pod, and sets the summary and the
// nodes to print.
func (e *explanation) explainWaiting(pod inspect.WaitFacts, nodes []placement.Node, facts inspect.Facts, showAll bool) {
	switch {
	case pod.Problem != "":
		e.Summary = "waits, since its request cannot be read: " + pod.Problem
		e.Advice = "correct a wrong annotation on the pod (the scheduler reads it again at its next attempt), or recreate the pod to correct its limits; correct the template of its controller too"
		return
	case pod.InVain != "":
		e.Summary = "waits: it " + pod.InVain
		if unserved := pod.Unserved(facts.Schedulers); unserved != "" {
			e.Summary += "; " + unserved
		}
		return
	case facts.PodsUnknown:
		e.explainWithoutNodes(pod, facts)
		return
	}
	var results []inspect.NodeResult
	for _, n := range nodes {
		if len(n.Devices) > 0 {
			results = append(results, facts.EvaluateNode(pod, n))
		}
	}
	slices.SortStableFunc(results, inspect.NodeResult.Compare)
	e.Summary, e.Advice = summary(pod, results, facts), schedulerAdvice(pod, facts)
	e.fitsSomeNode = slices.ContainsFunc(results, inspect.NodeResult.IsPlaceable)
	e.fragmented = slices.ContainsFunc(results, func(c inspect.NodeResult) bool {
		return c.Reason == placement.Fragmented && c.Refusal == nil && !c.IsExcluded
	})
	if !showAll && len(results) > shownNodes {
		e.omittedNodes = len(results) - shownNodes
		results = results[:shownNodes]
	}
	for _, c := range results {
		n := describeNode(pod.Request, c.Node, placement.Assignment{}, facts.Nodes[c.Node.Name])
		switch {
		case c.Refusal != nil:
			n.Reason, n.Message = c.Refusal.Reason, reasons.Refusal(c.Refusal)
		case !c.Fits():
			n.Reason, n.Message = c.Reason.String(), c.Explain()
		}
		e.addNode(n, c.Node)
	}
}

// addNode adds a node to print, and records its pods on unknown GPUs.
func (e *explanation) addNode(described history.Node, n placement.Node) {
	e.Now = append(e.Now, described)
	if units := n.UnattributedAmount().Units; units > 0 {
		e.legend = append(e.legend, fmt.Sprintf("TAKEN of each GPU of %s includes %s of pods whose GPU is unknown", n.Name, reasons.Amount(units, n.UnitMiB)))
	}
}

// explainWithoutNodes summarizes the pod's fields and its scheduler's message, for a user who may not see all nodes
// and pods.
func (e *explanation) explainWithoutNodes(pod inspect.WaitFacts, facts inspect.Facts) {
	e.Summary = "waits, and " + cmp.Or(schedulerMessage(pod), "its scheduler has reported no reason")
	if unserved := pod.Unserved(facts.Schedulers); unserved != "" {
		e.Summary += "; " + unserved
	}
	e.Advice = schedulerAdvice(pod, facts)
}

// schedulerAdvice returns a remedy for the pod's schedulerName if it differs from gpumem's default and the user
// cannot read the names of the schedulers that ask gpumem; empty otherwise.
func schedulerAdvice(pod inspect.WaitFacts, facts inspect.Facts) string {
	if !facts.SchedulersUnknown || pod.Scheduler == api.DefaultScheduler {
		return ""
	}
	return fmt.Sprintf("set spec.schedulerName to the name of gpumem's scheduler (%s by default; the pod has %s), and recreate the pod",
		api.DefaultScheduler, cmp.Or(pod.Scheduler, v1.DefaultSchedulerName))
}

// describeNode describes a node for a request, with the author and the reason of each cordon.
func describeNode(req placement.Request, n placement.Node, chosen placement.Assignment, facts inspect.NodeFacts) history.Node {
	out := history.DescribeNode(req, n, chosen)
	for i, d := range n.Devices {
		out.GPUs[i].Unhealthy = facts.Causes(d)
	}
	return out
}

// summary returns a line with the reason why a pod waits. The results must be sorted.
func summary(pod inspect.WaitFacts, results []inspect.NodeResult, facts inspect.Facts) string {
	fitCount, allowedCount := 0, 0
	for _, c := range results {
		if c.IsPlaceable() {
			fitCount++
		}
		if !c.IsExcluded {
			allowedCount++
		}
	}
	nodesText, unfit := countNodes(allowedCount), "it fits on none of "+countNodes(allowedCount)
	if allowedCount == 1 {
		unfit = "it does not fit on the only node"
	}
	if allowedCount < len(results) {
		const allowed = " that its nodeSelector, affinity and tolerations allow"
		nodesText, unfit = nodesText+allowed, unfit+allowed
	}
	unserved := pod.Unserved(facts.Schedulers)
	var s string
	switch {
	case len(results) == 0:
		s = "waits: no node offers GPU memory; kubectl inspect gpumem doctor shows the cause"
	case fitCount > 0:
		return fmt.Sprintf("waits, though its GPU memory fits on %d of %s: %s", fitCount, nodesText, cmp.Or(unserved, schedulerMessage(pod), inspect.AskEvents))
	case pod.Request.Cores() > 0 && facts.CoresOff != "":
		s = "waits: " + facts.CoresOff
	case allowedCount == 0:
		s = fmt.Sprintf("waits: its nodeSelector, affinity and tolerations allow none of %s; %s comes closest: %s", countNodes(len(results)), results[0].Node.Name, results[0].Explain())
	default:
		s = fmt.Sprintf("waits: %s; %s comes closest: %s", unfit, results[0].Node.Name, results[0].Explain())
		if tainted := inspect.Tainted(results...); tainted != "" {
			s += "; " + tainted
		}
	}
	if unserved != "" {
		s += "; " + unserved
	}
	return s
}

// schedulerMessage returns the last message of the pod's scheduler; empty if there is none.
func schedulerMessage(pod inspect.WaitFacts) string {
	if pod.LastMessage == "" {
		return ""
	}
	return "its scheduler says: " + pod.LastMessage
}

// renderRequest renders a request, for example "3 GiB on each of 2 GPUs", with the pod's constraints and
// preferences.
func renderRequest(req placement.Request, unitMiB int64) string {
	units, cores := req.Share()
	s := renderAmount(req, units, unitMiB)
	if cores > 0 {
		s += fmt.Sprintf(" and %d%% of cores", cores)
	}
	if n := req.GPUs(); n > 1 {
		s += fmt.Sprintf(" on each of %d GPUs", n)
	} else {
		s += " on one GPU"
	}
	return s + api.Wishes(req)
}

// renderAmount renders units of the resource that the pod requests: as shares, in GiB or MiB, or as units of
// unknown size.
func renderAmount(req placement.Request, units gpu.Units, unitMiB int64) string {
	switch {
	case req.InShares:
		return reasons.Amount(units, 0)
	case unitMiB > 0:
		return reasons.Amount(units, unitMiB)
	default:
		return fmt.Sprintf("%d units", units)
	}
}
