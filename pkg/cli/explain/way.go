package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// rollout identifies a revision of a Deployment. The field hash is the pod-template-hash, in which the
// revisions of a Deployment differ.
type rollout struct{ namespace, deployment, hash string }

// rolloutOf returns the rollout of a pod; the zero value for a pod of no Deployment.
func rolloutOf(pod *v1.Pod) rollout {
	deployment := cluster.DeploymentOf(pod)
	if deployment == "" {
		return rollout{}
	}
	return rollout{pod.Namespace, deployment, pod.Labels["pod-template-hash"]}
}

// replaces reports whether r and old are different revisions of one Deployment.
func (r rollout) replaces(old rollout) bool {
	return r.deployment != "" && r.namespace == old.namespace && r.deployment == old.deployment && r.hash != old.hash
}

// setBlockingPods names the pods that have to leave before the pod fits: terminating pods, and pods of the
// previous revision, which leave only when the new pod runs.
func (o *Options) setBlockingPods(ctx context.Context, e *explanation, pod inspect.WaitFacts, revision rollout, rollouts map[string]rollout, nodes []placement.Node, facts inspect.Facts) {
	if e.fitsSomeNode || len(e.Now) == 0 && (!facts.PodsUnknown || pod.Problem != "" || pod.InVain != "") {
		return // the pod fits, or waits for another reason
	}
	order := make(map[string]int) // e.Now has the closest nodes first; nodes that it lacks get 0 and come last
	for i, n := range e.Now {
		order[n.Name] = i - len(e.Now)
	}
	nodes = slices.SortedStableFunc(slices.Values(nodes), func(a, b placement.Node) int { return cmp.Compare(order[a.Name], order[b.Name]) })
	isTerminating := func(h placement.Holding) bool { return facts.Pods[h.Pod.UID].State == "Terminating" }
	e.Terminating, _ = simulateDeletion(pod, nodes, facts, isTerminating)
	var helps bool
	e.Replaced, helps = simulateDeletion(pod, nodes, facts, func(h placement.Holding) bool { return revision.replaces(rollouts[h.Pod.UID]) && !isTerminating(h) })
	if helps {
		e.Replaced += fmt.Sprintf(". They belong to the previous revision of Deployment %s, which deletes them only when the new pod runs: "+
			"with spec.strategy.rollingUpdate.maxSurge: 0 and maxUnavailable: 1 it deletes one first", revision.deployment)
	}
	noScheduler := pod.NotConsidered && e.Advice != "" // free memory does not help a pod with a wrong schedulerName
	if e.fragmented && e.Terminating == "" && e.Replaced == "" && !noScheduler {
		e.Advice = fmt.Sprintf("kubectl inspect gpumem defrag %s plans which pods to move: a node has enough free memory in all", pod.Pod)
		if !o.mayPlan(ctx) {
			e.Advice = fmt.Sprintf("ask an administrator to run kubectl inspect gpumem defrag %s, because you may not list PodDisruptionBudgets: a node has enough free memory in all", pod.Pod)
		}
	}
}

// mayPlan reports whether the user may run the command defrag, which lists PodDisruptionBudgets.
func (o *Options) mayPlan(ctx context.Context) bool {
	_, err := o.cluster.Client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	return !apierrors.IsForbidden(err)
}

// simulateDeletion reports whether a waiting pod fits after the deletion of all pods for which isDeleted returns
// true. The line names the deleted pods and their memory on the first node that the waiting pod then fits. If it
// fits no node, the line names the first node with deleted pods or, if the free memory is unknown, all nodes with
// deleted pods. The result helps is true if the waiting pod may fit earlier after a user deletes these pods.
func simulateDeletion(pod inspect.WaitFacts, nodes []placement.Node, facts inspect.Facts, isDeleted func(placement.Holding) bool) (line string, helps bool) {
	var unsure []string
	for _, n := range nodes {
		var deleted []placement.Holding
		var names []string
		var units gpu.Units
		for _, h := range n.Holdings() {
			if !isDeleted(h) {
				continue
			}
			deleted = append(deleted, h)
			names = append(names, h.Pod.String())
			units += h.Request.Units()
		}
		if len(deleted) == 0 {
			continue
		}
		slices.Sort(names)
		if more := len(names) - shownNodes; more > 0 {
			names = append(names[:shownNodes], fmt.Sprintf("%d more", more))
		}
		description := fmt.Sprintf("%s on %s: %s", strings.Join(names, ", "), n.Name, renderAmount(pod.Request, units, n.UnitMiB))
		switch {
		case facts.PodsUnknown:
			unsure, helps = append(unsure, description), helps || units >= pod.Request.Units()
		case facts.EvaluateNode(pod, n.Without(deleted)).IsPlaceable():
			return description + "; the pod fits once they are gone", true
		case line == "":
			line, helps = description+", which is not enough", true
		}
	}
	if len(unsure) > 0 {
		line = strings.Join(unsure, "; ") + "; it is unknown whether the pod fits without them"
	}
	return line, helps
}
