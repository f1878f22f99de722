package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// rollout is what a pod is of, if a Deployment rolls it out: all revisions of it have the name in
// common, and each its own hash.
type rollout struct{ namespace, deployment, hash string }

// rolloutOf reads it from the name of the pod's ReplicaSet, which the Deployment gives it.
func rolloutOf(pod *v1.Pod) rollout {
	owner, hash := metav1.GetControllerOf(pod), pod.Labels["pod-template-hash"]
	if owner == nil || owner.Kind != "ReplicaSet" || hash == "" {
		return rollout{}
	}
	deployment, ok := strings.CutSuffix(owner.Name, "-"+hash)
	if !ok {
		return rollout{}
	}
	return rollout{pod.Namespace, deployment, hash}
}

// replaces reports whether pods of one are replaced by those of the other.
func (r rollout) replaces(old rollout) bool {
	return r.deployment != "" && r.namespace == old.namespace && r.deployment == old.deployment && r.hash != old.hash
}

// lookInTheWay says what has to end for a pod to fit, where that is on its way, or does not come by
// itself: pods that are terminating, and those of the revision that the pod replaces.
func (e *explanation) lookInTheWay(pod inspect.WaitFacts, of rollout, rollouts map[string]rollout, nodes []placement.Node, facts inspect.Facts) {
	if e.fits || len(e.Now) == 0 && (!facts.PodsUnknown || pod.Problem != "" || pod.InVain != "") {
		return // it fits now, or no node was looked at: the pod waits for something else
	}
	order := make(map[string]int) // the nodes that come closest go first
	for i, n := range e.Now {
		order[n.Name] = i - len(e.Now)
	}
	nodes = slices.SortedStableFunc(slices.Values(nodes), func(a, b placement.Node) int { return cmp.Compare(order[a.Name], order[b.Name]) })
	leaving := func(h placement.Holding) bool { return facts.Pods[h.Pod.UID].State == "Terminating" }
	e.Terminating, _ = without(pod, nodes, facts, leaving)
	var helps bool
	e.Replaced, helps = without(pod, nodes, facts, func(h placement.Holding) bool { return of.replaces(rollouts[h.Pod.UID]) && !leaving(h) })
	if helps {
		e.Replaced += fmt.Sprintf(". They belong to the previous revision of Deployment %s, which deletes them only when the new pod runs: "+
			"with spec.strategy.rollingUpdate.maxSurge: 0 and maxUnavailable: 1 it deletes one first", of.deployment)
	}
	if e.fragmented && e.Terminating == "" && e.Replaced == "" {
		e.Advice = fmt.Sprintf("kubectl inspect gpumem defrag %s plans which pods to move: a node has enough free memory in all", pod.Pod)
	}
}

// without says on which of the nodes a pod fits once some of the pods there are gone, and what they
// give back; of the first node that has any, where it fits on none even then, and of each where what is
// free is not known. It may help to end them first where they have as much as the pod asks for.
func without(pod inspect.WaitFacts, nodes []placement.Node, facts inspect.Facts, goes func(placement.Holding) bool) (line string, helps bool) {
	var unsure []string
	for _, n := range nodes {
		var gone []placement.Holding
		var names []string
		var units gpu.Units
		for _, h := range n.Holdings() {
			if !goes(h) {
				continue
			}
			gone = append(gone, h)
			names = append(names, h.Pod.String())
			units += h.Request.Units()
		}
		if len(gone) == 0 {
			continue
		}
		slices.Sort(names)
		if more := len(names) - shownNodes; more > 0 {
			names = append(names[:shownNodes], fmt.Sprintf("%d more", more))
		}
		said := fmt.Sprintf("%s on %s: %s", strings.Join(names, ", "), n.Name, amount(pod.Request, units, n.UnitMiB))
		switch {
		case facts.PodsUnknown:
			unsure, helps = append(unsure, said), helps || units >= pod.Request.Units()
		case facts.Chance(pod, n.Without(gone)).Good():
			return said + "; the pod fits once they are gone", true
		case line == "":
			line, helps = said+", which is not enough", true
		}
	}
	if len(unsure) > 0 {
		line = strings.Join(unsure, "; ") + "; whether the pod fits without them is not known"
	}
	return line, helps
}
