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
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// newPlugin returns the plugin of one profile. It wraps kube-scheduler's DefaultPreemption, which then calls
// the plugin's SelectVictimsOnNode.
func newPlugin(ctx context.Context, decider *decider.Decider, handle fwk.Handle) (*Plugin, error) {
	args := &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100} // kube-scheduler's defaults
	preemption, err := defaultpreemption.New(ctx, args, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, err
	}
	p := &Plugin{Interface: preemption, preemption: preemption, decider: decider, handle: handle}
	preemption.Evaluator.PluginName, preemption.Evaluator.Interface = Name, p
	return p, nil
}

// PreEnqueue keeps a pod out of the queue while its victims are being evicted.
func (p *Plugin) PreEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status {
	return p.preemption.PreEnqueue(ctx, pod)
}

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
	result, status := p.preemption.PostFilter(ctx, state, pod, statuses)
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

// betterVictims prepares the choice of a node's victims. Call it before kube-scheduler's own selection, which
// removes pods from info, and call the returned function with the results of that selection. kube-scheduler
// spares the more important pods one after the other, and so may evict many small pods although one is
// enough. If gpumem's victims on one GPU cost less, and all filters pass without these pods, the function
// returns gpumem's victims instead.
func (p *Plugin) betterVictims(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, budgets []*policyv1.PodDisruptionBudget) func([]*v1.Pod, int, *fwk.Status) ([]*v1.Pod, int, *fwk.Status) {
	whole, before := info.Snapshot(), state.Clone()
	return func(victims []*v1.Pod, violations int, status *fwk.Status) ([]*v1.Pod, int, *fwk.Status) {
		c := stored[*cycle](state)
		if c == nil || !status.IsSuccess() {
			return victims, violations, status
		}
		cheaper, n, ok := p.decider.Cheaper(c.Cycle, nodeOf(whole), victims, budgets)
		if !ok || !p.passesWithout(ctx, before, pod, whole, cheaper) {
			return victims, violations, status
		}
		slices.SortFunc(cheaper, func(a, b *v1.Pod) int { // the most important first: kube-scheduler compares nodes by the first victim
			return placement.CompareBool(util.MoreImportantPod(b, a), util.MoreImportantPod(a, b))
		})
		return cheaper, n, status
	}
}

// passesWithout reports whether the pod passes all filters on a node after the victims have left it.
func (p *Plugin) passesWithout(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo, victims []*v1.Pod) bool {
	for _, i := range slices.Clone(info.GetPods()) {
		if !slices.Contains(victims, i.GetPod()) {
			continue
		}
		err := info.RemovePod(klog.FromContext(ctx), i.GetPod())
		if err != nil || !p.handle.RunPreFilterExtensionRemovePod(ctx, state, pod, i, info).IsSuccess() {
			return false
		}
	}
	return p.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, info).IsSuccess()
}
