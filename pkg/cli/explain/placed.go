package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// explainPlacement explains how a bound pod got its node and its GPU.
func (o *Options) explainPlacement(ctx context.Context, pod *v1.Pod) string {
	scheduler := cmp.Or(pod.Spec.SchedulerName, v1.DefaultSchedulerName)
	a, err := o.cluster.Names.AssignmentOf(pod)
	switch {
	case err != nil:
		return "is on a node, but its GPU assignment cannot be read: " + cluster.OneLine(err)
	case a.None():
		return "is on a node, and has no GPU yet: neither gpumem's scheduler nor the node's device plugin has chosen one"
	}
	asking, _ := o.cluster.Schedulers(ctx)
	served := strings.Join(asking, " or ")
	otherScheduler := len(asking) > 0 && !slices.Contains(asking, scheduler)
	summary, advice := "is on a node that scheduler "+scheduler+" chose", "; this scheduler is not known to ask gpumem now: if it does not, a new pod needs schedulerName "+served
	if a.ByNode {
		summary = "is on a node that was chosen without asking gpumem, " + bypass(asking, scheduler) + ": the node's device plugin chose the GPU"
		advice = "; pods with schedulerName " + served + " go where they fit on one GPU"
	}
	if otherScheduler {
		summary += advice
	}
	return summary
}

// preferredModels returns a line for each model that a placed pod prefers to the worst of its own GPUs, best
// first. The line names the closest node with the model, and describes the pod's current fit there. The
// function omits models that no node could ever assign to the pod.
func preferredModels(pod inspect.WaitFacts, own placement.Node, a placement.Assignment, nodes []placement.Node, facts inspect.Facts) (lines []string) {
	own = cluster.NodeWithoutPod(own, pod.Pod)  // for another GPU, the pod would leave its own
	liked := make(map[string]placement.Device)  // a device of each model
	best := make(map[string]inspect.NodeResult) // by model
	for _, n := range nodes {
		if n.Name == own.Name {
			n = own
		}
		for model, d := range betterModels(pod.Request, own, a, n) {
			narrow := pod
			narrow.Request.Models = placement.NewGlobs(model)
			result := facts.EvaluateNode(narrow, n)
			was, known := best[model]
			if !result.IsExcluded && !result.Unresolvable() && (!known || result.Compare(was) < 0) {
				liked[model], best[model] = d, result
			}
		}
	}
	models := slices.SortedFunc(maps.Keys(best), func(x, y string) int {
		likes := pod.Request.Preference
		return cmp.Or(cmp.Compare(likes.Cost(liked[x].Speed), likes.Cost(liked[y].Speed)), cmp.Compare(x, y))
	})
	for _, model := range models {
		now := best[model].Explain()
		if best[model].IsPlaceable() {
			now = "it would fit; a pod that is placed is not moved"
		}
		lines = append(lines, fmt.Sprintf("%s on %s; now: %s", model, best[model].Node.Name, now))
	}
	return lines
}

// betterModels returns the models of node n that the pod may use and prefers to the worst of its GPUs on node
// own. The map contains one device of each model.
func betterModels(req placement.Request, own placement.Node, a placement.Assignment, n placement.Node) map[string]placement.Device {
	models := make(map[string]placement.Device)
	for _, d := range n.Devices {
		if n.Check(req, d) == placement.NoSuchDevice {
			continue
		}
		for _, has := range own.Devices {
			if slices.Contains(a.Devices(), has.UUID) && req.Preference.Cost(d.Speed) < req.Preference.Cost(has.Speed) {
				models[d.Model] = d
			}
		}
	}
	return models
}

// bypass names the ways in which a pod can get a node without gpumem: spec.nodeName, and the pod's scheduler
// unless it asks gpumem.
func bypass(asking []string, scheduler string) string {
	if slices.Contains(asking, scheduler) {
		return "by spec.nodeName"
	}
	return "by spec.nodeName, or by scheduler " + scheduler
}

// statusReason returns the reason and the message in the status of a pod that has ended.
func statusReason(pod *v1.Pod) string {
	var words []string
	for _, s := range []string{pod.Status.Reason, pod.Status.Message} {
		if s != "" {
			words = append(words, s)
		}
	}
	if len(words) == 0 {
		return ""
	}
	return ": " + strings.Join(words, ": ")
}

// advice returns the remedy for a pod that the kubelet rejected; empty for other pods.
func (o *Options) advice(ctx context.Context, pod *v1.Pod) string {
	const docsHint = "docs/troubleshooting.md#a-pod-fails-with-unexpectedadmissionerror explains the message"
	if !api.Rejected(pod) {
		return ""
	}
	scheduler := cmp.Or(pod.Spec.SchedulerName, v1.DefaultSchedulerName)
	if a, err := o.cluster.Names.AssignmentOf(pod); err == nil && !a.None() {
		return fmt.Sprintf("scheduler %s had chosen the node and the GPU: delete the pod, and create it again if it has no controller; %s", scheduler, docsHint)
	}
	asking, _ := o.cluster.Schedulers(ctx)
	ours := cmp.Or(strings.Join(asking, " or "), "the name of gpumem's scheduler")
	return fmt.Sprintf("the node was chosen without asking gpumem, %s: create the pod again without nodeName, and set schedulerName to %s; %s", bypass(asking, scheduler), ours, docsHint)
}
