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
// node. If this node does not pass, kube-scheduler searches the nodes as usual in the same cycle.
type hintingFramework struct {
	framework.Framework
	decider *decider.Decider
}

// EnableHints enables hints in all profiles. kube-scheduler requests hints only if its feature gate is on.
func (s *State) EnableHints(profiles profile.Map) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.OpportunisticBatching) {
		s.Log.Warn("the feature gate OpportunisticBatching of kube-scheduler is off: kube-scheduler filters and scores a sample of the nodes for each pod, which takes several times the processor time")
	}
	for name, f := range profiles {
		profiles[name] = &hintingFramework{f, &s.decider}
	}
}

// RunPreFilterPlugins records whether the node names or volumes of the pod restrict it to some nodes.
// kube-scheduler evaluates these few nodes faster than Best finds a hint.
func (h *hintingFramework) RunPreFilterPlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod) (*fwk.PreFilterResult, *fwk.Status, sets.Set[string]) {
	result, status, unschedulable := h.Framework.RunPreFilterPlugins(ctx, state, pod)
	if c := stored[*cycle](state); c != nil {
		c.few = !result.AllNodes()
	}
	return result, status, unschedulable
}

// bestNode returns the best node that passes all filters; empty: kube-scheduler must search the nodes itself.
// Three kinds of pods get no hint: a pod that PreFilter restricts to some nodes (RunPreFilterPlugins); a
// nominated pod, because kube-scheduler tries its nominated node first; and a pod that prefers some nodes,
// because kube-scheduler must score several nodes.
func (h *hintingFramework) bestNode(ctx context.Context, c *cycle, state fwk.CycleState, pod *v1.Pod) string {
	if c.few || pod.Status.NominatedNodeName != "" || len(api.Preferences(pod)) > 0 {
		return ""
	}
	var passed []fwk.NodeInfo
	passes := func(node string) bool {
		info, err := h.SnapshotSharedLister().NodeInfos().Get(node)
		if err != nil || !h.RunFilterPluginsWithNominatedPods(ctx, state, pod, info).IsSuccess() {
			return false // err != nil: kube-scheduler may not have a node that the cache has
		}
		passed = append(passed, info)
		return true
	}
	highestScored := func([]string) string { // by kube-scheduler's scores
		if h.RunPreScorePlugins(ctx, state, pod, passed).IsSuccess() {
			if scores, status := h.RunScorePlugins(ctx, state, pod, passed); status.IsSuccess() {
				return slices.MaxFunc(scores, func(a, b fwk.NodePluginScores) int { return cmp.Compare(a.TotalScore, b.TotalScore) }).Name
			}
		}
		return passed[0].Node().Name // a plugin failed
	}
	return h.decider.Best(c.Cycle, nil, passes, highestScored)
}

// preferenceWeight exceeds the sum of all scores of a node.
const preferenceWeight = 1 << 24

// RunScorePlugins makes the pod's own preferences outrank the cluster's policy for GPUs. The policy only
// decides between nodes that the pod prefers equally.
func (h *hintingFramework) RunScorePlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, infos []fwk.NodeInfo) ([]fwk.NodePluginScores, *fwk.Status) {
	nodes, status := h.Framework.RunScorePlugins(ctx, state, pod, infos)
	if stored[*cycle](state) == nil || !status.IsSuccess() {
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
