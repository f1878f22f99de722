package plugin

import (
	"cmp"
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// hintingFramework is the framework of one profile. It returns the best node for each pod with GPU memory as
// a hint. kube-scheduler uses hints for its opportunistic batching (KEP-5598): it filters only the hinted
// node, and evaluates all nodes in the same cycle if the hinted node does not pass.
type hintingFramework struct {
	framework.Framework
	decider *decider.Decider
}

// EnableHints enables hints in all profiles. kube-scheduler requests hints only if its feature gate is on.
func (s *State) EnableHints(profiles profile.Map) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.OpportunisticBatching) {
		s.log.Warn("the feature gate OpportunisticBatching of kube-scheduler is off: kube-scheduler filters and scores a sample of the nodes for each pod, which takes several times the processor time")
	}
	for name, f := range profiles {
		profiles[name] = &hintingFramework{f, s.decider}
	}
}

// RunPreFilterPlugins records whether the node names or volumes of the pod restrict it to some nodes.
// kube-scheduler evaluates these few nodes faster than Best finds a hint.
func (h *hintingFramework) RunPreFilterPlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod) (*fwk.PreFilterResult, *fwk.Status, sets.Set[string]) {
	result, status, unschedulable := h.Framework.RunPreFilterPlugins(ctx, state, pod)
	if c := cycleOf(state); c != nil {
		c.few = !result.AllNodes()
	}
	return result, status, unschedulable
}

// bestNode returns the best node that passes all filters; empty: kube-scheduler must evaluate all nodes.
// Four kinds of pods get no hint: a pod that PreFilter restricts to some nodes (RunPreFilterPlugins); a
// nominated pod, because it goes to its nominated node; a pod that prefers some nodes, because kube-scheduler
// must score all nodes; and a pod of a group.
func (h *hintingFramework) bestNode(ctx context.Context, state fwk.CycleState, pod *v1.Pod) string {
	c := cycleOf(state)
	if c.few || pod.Status.NominatedNodeName != "" || grouped(pod) || len(api.Preferences(pod)) > 0 {
		return ""
	}
	infos := h.SnapshotSharedLister().NodeInfos()
	passes := func(node string) bool {
		info, err := infos.Get(node) // kube-scheduler may not have a node that the cache has
		return err == nil && h.RunFilterPluginsWithNominatedPods(ctx, state, pod, info).IsSuccess()
	}
	return h.decider.Best(c.Cycle, nil, passes, func(nodes []string) string { return h.highestScored(ctx, state, pod, nodes) })
}

// highestScored returns the node with kube-scheduler's highest score.
func (h *hintingFramework) highestScored(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []string) string {
	var infos []fwk.NodeInfo
	for _, name := range nodes {
		info, err := h.SnapshotSharedLister().NodeInfos().Get(name)
		if err != nil {
			return nodes[0]
		}
		infos = append(infos, info)
	}
	if !h.RunPreScorePlugins(ctx, state, pod, infos).IsSuccess() {
		return nodes[0]
	}
	scores, status := h.RunScorePlugins(ctx, state, pod, infos)
	if !status.IsSuccess() {
		return nodes[0]
	}
	return slices.MaxFunc(scores, func(a, b fwk.NodePluginScores) int { return cmp.Compare(a.TotalScore, b.TotalScore) }).Name
}

// preferenceWeight exceeds the sum of all scores of a node.
const preferenceWeight = 1 << 24

// RunScorePlugins makes the pod's own preferences outrank the cluster's policy for GPUs. The policy only
// decides between nodes that the pod prefers equally.
func (h *hintingFramework) RunScorePlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, infos []fwk.NodeInfo) ([]fwk.NodePluginScores, *fwk.Status) {
	nodes, status := h.Framework.RunScorePlugins(ctx, state, pod, infos)
	if cycleOf(state) == nil || !status.IsSuccess() {
		return nodes, status
	}
	plugins := api.Preferences(pod)
	for i := range nodes {
		for _, s := range nodes[i].Scores {
			if slices.Contains(plugins, s.Name) {
				nodes[i].TotalScore += s.Score * preferenceWeight
			}
		}
	}
	return nodes, status
}
