package plugin

import (
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// PostFilter records why a pod with GPU memory fits no node, and evicts other pods for it. For pods without
// GPU memory, kube-scheduler's own plugin does this.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	c := stored[*cycle](state)
	if c == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	nodes := p.recordUnfit(c.Cycle, statuses)
	if !p.decider.MayEvict(c.Cycle, 0) {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, decider.NoEviction)
	}
	result, status := p.defaults.PostFilter(ctx, state, pod, statuses)
	if status.IsSuccess() {
		p.decider.Evicts(c.Cycle, 0, 1, result.NominatedNodeName, "")
		return result, status
	}
	p.decider.Evicts(c.Cycle, 0, 0, "", status.Message())
	if status.Code() == fwk.Unschedulable {
		// This status ends PostFilter: kube-scheduler's own plugin would return the same result.
		said := status.Reasons()
		if len(nodes) > 0 {
			said = append(slices.Clip(said), "Closest: "+strings.Join(nodes, "; "))
		}
		status = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, said...)
	}
	return result, status
}

// recordUnfit calls Decider.Unfit with the nodes whose first refusal is by this plugin. In a large cluster, it
// returns descriptions of the three closest nodes, for kube-scheduler's message.
func (p *Plugin) recordUnfit(c *decider.Cycle, statuses fwk.NodeToStatusReader) (closest []string) {
	infos, _ := p.handle.SnapshotSharedLister().NodeInfos().List() // a snapshot's lister returns no error
	var refused []decider.RefusedNode
	for _, info := range infos {
		// A node that PreFilter excluded has a status without a plugin. Include it if this plugin excluded it.
		if by := statuses.Get(info.Node().Name).Plugin(); by == Name || by == "" && c.BoundNode() != "" {
			refused = append(refused, decider.RefusedNode{Name: info.Node().Name, Refusal: p.decider.Refuse(c, nodeOf(info))})
		}
	}
	nodes := p.decider.Unfit(c, refused)
	if len(infos) > history.MaxNodes {
		for _, n := range nodes[:min(len(nodes), 3)] {
			closest = append(closest, n.Name+" "+n.Message)
		}
	}
	return closest
}

// cheaperVictims returns kube-scheduler's choice of victims on a node, or gpumem's if it is better.
// kube-scheduler spares the more important pods one after the other, and so may evict many small pods
// although one is enough. gpumem's victims are better if their eviction costs less (preemption.Cheaper), and
// all filters pass without them. Parameters state and info are copies from before kube-scheduler's choice.
func (p *Plugin) cheaperVictims(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, budgets []*policyv1.PodDisruptionBudget, victims []*v1.Pod, violations int, status *fwk.Status) ([]*v1.Pod, int, *fwk.Status) {
	c := stored[*cycle](state)
	if c == nil || !status.IsSuccess() {
		return victims, violations, status
	}
	cheaper, n, ok := p.decider.Cheaper(c.Cycle, nodeOf(info), victims, budgets)
	if !ok || !p.passesWithout(ctx, state, pod, info, cheaper) {
		return victims, violations, status
	}
	slices.SortFunc(cheaper, func(a, b *v1.Pod) int { // the most important first: kube-scheduler compares nodes by the first victim
		return placement.CompareBool(util.MoreImportantPod(b, a), util.MoreImportantPod(a, b))
	})
	return cheaper, n, status
}

// passesWithout reports whether the pod passes all filters on a node after the victims have left it.
func (p *Plugin) passesWithout(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, victims []*v1.Pod) bool {
	for _, i := range slices.Clone(info.GetPods()) {
		if !slices.Contains(victims, i.GetPod()) {
			continue
		}
		if info.RemovePod(klog.FromContext(ctx), i.GetPod()) != nil || !p.handle.RunPreFilterExtensionRemovePod(ctx, state, pod, i, info).IsSuccess() {
			return false
		}
	}
	return p.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, info).IsSuccess()
}
