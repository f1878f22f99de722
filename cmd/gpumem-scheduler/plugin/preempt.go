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
	"github.com/gpumem/gpumem/pkg/report/decisions"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// evictor is kube-scheduler's own, but for whom it evicts from a node.
type evictor struct {
	*defaultpreemption.DefaultPreemption
	plugin *Plugin
}

// What kube-scheduler has by default: it looks at a tenth of the nodes, and at 100 at least.
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

// PreEnqueue keeps a pod out of the queue while others are being evicted for it.
func (p *Plugin) PreEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status {
	return p.evictor.PreEnqueue(ctx, pod)
}

// PostFilter takes note of why a pod with GPU memory fits nowhere, and has others evicted for
// it. Of other pods it leaves that to kube-scheduler's own plugin.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	c := read(state)
	if c == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	nodes := p.unfit(c, statuses)
	if !p.decider.MayEvict(c, 0) {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, decider.NoEviction)
	}
	result, status := p.evictor.PostFilter(ctx, state, pod, statuses)
	if status.IsSuccess() && result != nil && result.NominatingInfo != nil {
		p.decider.Evicts(c, 0, 1, result.NominatedNodeName, "")
	} else {
		p.decider.Evicts(c, 0, 0, "", status.Message())
	}
	if status.Code() == fwk.Unschedulable {
		// This ends it: kube-scheduler's own plugin would come to the same.
		said := status.Reasons()
		if len(nodes) > 0 {
			said = append(slices.Clip(said), "Closest: "+strings.Join(nodes, "; "))
		}
		status = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, said...)
	}
	return result, status
}

// mostDescribed is how many of many nodes kube-scheduler's message describes.
const mostDescribed = 3

// unfit has the decider record the nodes that nothing else keeps the pod away from. Of many
// it describes the closest.
func (p *Plugin) unfit(c *decider.Cycle, statuses fwk.NodeToStatusReader) (closest []string) {
	infos, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil // a snapshot's lister has none
	}
	var refused []decider.RefusedNode
	for _, info := range infos {
		// A node that PreFilter has left out has a status of no plugin. It counts where this one has left it out.
		if by := statuses.Get(info.Node().Name).Plugin(); by == Name || by == "" && c.On() != "" {
			refused = append(refused, decider.RefusedNode{Name: info.Node().Name, Refusal: p.decider.Refuse(c, nodeOf(info))})
		}
	}
	nodes := p.decider.Unfit(c, refused)
	if len(infos) > decisions.MaxNodes {
		for _, n := range nodes[:min(len(nodes), mostDescribed)] {
			closest = append(closest, n.Name+" "+n.Message)
		}
	}
	return closest
}

// selected is what kube-scheduler's own preemption says of a node: whom to evict, and how many
// of them against their budgets.
type selected struct {
	victims    []*v1.Pod
	violations int
	status     *fwk.Status
}

// onNode says whom to evict from a node. kube-scheduler lets the more important pods keep their
// place, one after the other, and so may evict many small pods where one is enough. Whom the core
// chooses on one GPU is evicted where that costs less, and all filters pass without them.
func (e *evictor) onNode(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, budgets []*policyv1.PodDisruptionBudget, own func() selected) selected {
	whole, before := info.Snapshot(), state.Clone()
	s := own()
	c := read(state)
	if c == nil || !s.status.IsSuccess() {
		return s
	}
	cheaper, n, ok := e.plugin.decider.Cheaper(c, nodeOf(whole), s.victims, budgets)
	if !ok || !e.passes(ctx, before, pod, whole, cheaper) {
		return s
	}
	slices.SortFunc(cheaper, func(a, b *v1.Pod) int { // the most important first: by it nodes are compared
		return placement.CompareBool(util.MoreImportantPod(b, a), util.MoreImportantPod(a, b))
	})
	return selected{cheaper, n, s.status}
}

// passes reports whether all filters let the pod go to a node that some pods have left.
func (e *evictor) passes(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, gone []*v1.Pod) bool {
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
