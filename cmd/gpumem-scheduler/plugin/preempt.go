package plugin

import (
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// evictor is kube-scheduler's DefaultPreemption with cheaper victims (selectVictims).
type evictor struct {
	*defaultpreemption.DefaultPreemption
	plugin *Plugin
}

// kube-scheduler's defaults: preemption evaluates a tenth of the nodes, but at least 100.
const (
	leastCandidates        = 100
	leastCandidatesPercent = 10
)

func newEvictor(ctx context.Context, p *Plugin) (*evictor, error) {
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	args := &schedulerconfig.DefaultPreemptionArgs{MinCandidateNodesPercentage: leastCandidatesPercent, MinCandidateNodesAbsolute: leastCandidates}
	pl, err := defaultpreemption.New(ctx, args, p.handle, features)
	if err != nil {
		return nil, err
	}
	e := &evictor{DefaultPreemption: pl, plugin: p}
	pl.Evaluator = newEvaluator(p.handle, e, features)
	return e, nil
}

// PreEnqueue keeps a pod out of the queue while its victims are being evicted.
func (p *Plugin) PreEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status {
	return p.evictor.PreEnqueue(ctx, pod)
}

// PostFilter records why a pod with GPU memory fits no node, and evicts other pods for it. For pods without
// GPU memory, kube-scheduler's own plugin does this.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	c := cycleOf(state)
	if c == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	nodes := p.recordUnfit(c.Cycle, statuses)
	if !p.decider.MayEvict(c.Cycle, 0) {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, decider.NoEviction)
	}
	result, status := p.evictor.PostFilter(ctx, state, pod, statuses)
	if status.IsSuccess() && result != nil && result.NominatingInfo != nil {
		p.decider.Evicts(c.Cycle, 0, 1, result.NominatedNodeName, "")
	} else {
		p.decider.Evicts(c.Cycle, 0, 0, "", status.Message())
	}
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

// mostDescribed is the number of nodes that kube-scheduler's message describes in a large cluster.
const mostDescribed = 3

// recordUnfit passes the nodes that this plugin was the first to refuse to Decider.Unfit. In a large cluster,
// it returns descriptions of the closest nodes.
func (p *Plugin) recordUnfit(c *decider.Cycle, statuses fwk.NodeToStatusReader) (closest []string) {
	infos, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil // a snapshot's lister returns no error
	}
	var refused []decider.RefusedNode
	for _, info := range infos {
		// A node that PreFilter excluded has a status without a plugin. Include it if this plugin excluded it.
		if by := statuses.Get(info.Node().Name).Plugin(); by == Name || by == "" && c.BoundNode() != "" {
			refused = append(refused, decider.RefusedNode{Name: info.Node().Name, Refusal: p.decider.Refuse(c, nodeOf(info))})
		}
	}
	nodes := p.decider.Unfit(c, refused)
	if len(infos) > history.MaxNodes {
		for _, n := range nodes[:min(len(nodes), mostDescribed)] {
			closest = append(closest, n.Name+" "+n.Message)
		}
	}
	return closest
}

// selected is the result of kube-scheduler's preemption for one node: the victims, and the number of victims
// whose eviction violates a budget.
type selected struct {
	victims    []*v1.Pod
	violations int
	status     *fwk.Status
}

// selectVictims returns the victims of a node. Parameter own runs kube-scheduler's own selection, which
// spares the more important pods one after the other, and so may evict many small pods although one is
// enough. If gpumem's victims on one GPU cost less, and all filters pass without these pods, selectVictims
// returns gpumem's victims instead.
func (e *evictor) selectVictims(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, budgets []*policyv1.PodDisruptionBudget, own func() selected) selected {
	whole, before := info.Snapshot(), state.Clone()
	s := own()
	c := cycleOf(state)
	if c == nil || !s.status.IsSuccess() {
		return s
	}
	cheaper, n, ok := e.plugin.decider.Cheaper(c.Cycle, nodeOf(whole), s.victims, budgets)
	if !ok || !e.passesFilters(ctx, before, pod, whole, cheaper) {
		return s
	}
	slices.SortFunc(cheaper, func(a, b *v1.Pod) int { // the most important first: kube-scheduler compares nodes by the first victim
		return placement.CompareBool(util.MoreImportantPod(b, a), util.MoreImportantPod(a, b))
	})
	return selected{cheaper, n, s.status}
}

// passesFilters reports whether the pod passes all filters on a node after some pods have left it.
func (e *evictor) passesFilters(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, gone []*v1.Pod) bool {
	h := e.plugin.handle
	for _, i := range slices.Clone(info.GetPods()) {
		if !slices.Contains(gone, i.GetPod()) {
			continue
		}
		if err := info.RemovePod(klog.FromContext(ctx), i.GetPod()); err != nil {
			return false
		}
		if !h.RunPreFilterExtensionRemovePod(ctx, state, pod, i, info).IsSuccess() {
			return false
		}
	}
	return h.RunFilterPluginsWithNominatedPods(ctx, state, pod, info).IsSuccess()
}
