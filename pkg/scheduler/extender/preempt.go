package extender

import (
	"context"
	"slices"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// Neighbours lists the pods that may be evicted, and their budgets.
type Neighbours interface {
	// PodsOn returns all pods of a node, with or without GPU memory, as the watch last showed them.
	PodsOn(node string) []*v1.Pod
	// Budgets returns the PodDisruptionBudgets of a namespace.
	Budgets(namespace string) []*policyv1.PodDisruptionBudget
}

// Preempt replaces the victims that kube-scheduler proposes for each node by pods whose eviction makes the
// pod fit on one GPU. It omits nodes on which no eviction helps. The response cannot report an error: on
// failure, Preempt omits all nodes, and no pod is evicted.
func (e *Extender) Preempt(_ context.Context, args *extenderv1.ExtenderPreemptionArgs) *extenderv1.ExtenderPreemptionResult {
	result := &extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: make(map[string]*extenderv1.MetaVictims)}
	if args.Pod == nil {
		return result
	}
	proposed := e.proposedVictims(args)
	c, unreadable, err := e.Begin(history.Preempt, args.Pod, len(proposed))
	if unreadable != nil || err != nil || c != nil && !e.MayEvict(c, len(proposed)) {
		e.Log.Info("no preemption", zap.Stringer("pod", api.Ref(args.Pod)))
		return result
	}
	for name, victims := range proposed {
		if answer := e.selectVictims(c, name, victims); len(answer.Pods) > 0 {
			result.NodeNameToMetaVictims[name] = answer
		}
	}
	if c != nil {
		e.Log.Info("preempt", zap.Stringer("pod", c.Pod), zap.Int64("units", int64(c.Request.Units())),
			zap.Int("proposed", len(proposed)), zap.Int("possible", len(result.NodeNameToMetaVictims)))
		e.Evicts(c, len(proposed), len(result.NodeNameToMetaVictims), "", noneIsEnough)
	}
	return result
}

// noneIsEnough is the message if evictions help on none of the proposed nodes.
const noneIsEnough = "no eviction frees enough on one GPU of the nodes that kube-scheduler asked about; it asks about none whose sum is enough"

// proposedVictims returns the victims that kube-scheduler proposes. A request has either full pods or UIDs.
// If the watch has not shown a pod, the result has only its UID.
func (e *Extender) proposedVictims(args *extenderv1.ExtenderPreemptionArgs) map[string]*extenderv1.Victims {
	out := make(map[string]*extenderv1.Victims)
	for name, victims := range args.NodeNameToVictims {
		if victims != nil {
			pods := slices.DeleteFunc(slices.Clone(victims.Pods), func(pod *v1.Pod) bool { return pod == nil })
			out[name] = &extenderv1.Victims{Pods: pods, NumPDBViolations: victims.NumPDBViolations}
		}
	}
	for name, victims := range args.NodeNameToMetaVictims {
		if victims == nil {
			continue
		}
		known := make(map[string]*v1.Pod)
		for _, pod := range e.Neighbours.PodsOn(name) {
			known[string(pod.UID)] = pod
		}
		out[name] = &extenderv1.Victims{NumPDBViolations: victims.NumPDBViolations}
		for _, victim := range victims.Pods {
			switch {
			case victim == nil:
			case known[victim.UID] == nil:
				out[name].Pods = append(out[name].Pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(victim.UID)}})
			default:
				out[name].Pods = append(out[name].Pods, known[victim.UID])
			}
		}
	}
	return out
}

// selectVictims returns the UIDs of the pods to evict from one node; none if no eviction helps. kube-scheduler
// accepts UIDs in the response to both forms of the request.
func (e *Extender) selectVictims(c *decider.Cycle, node string, proposed *extenderv1.Victims) *extenderv1.MetaVictims {
	answer := new(extenderv1.MetaVictims)
	if c == nil || c.BoundNode() == node { // the pod does not lack a GPU there
		answer.NumPDBViolations = proposed.NumPDBViolations
		for _, pod := range proposed.Pods {
			answer.Pods = append(answer.Pods, &extenderv1.MetaPod{UID: string(pod.UID)})
		}
		return answer
	}
	chosen, beyond, ok := e.Victims(c, node, proposed.Pods, e.Neighbours.Budgets)
	if !ok || c.BoundNode() != "" { // the pod may still be bound to its other node
		return answer
	}
	// Only kube-scheduler has counted the violations of pods without a GPU.
	answer.NumPDBViolations = int64(chosen.Violations) + max(0, proposed.NumPDBViolations-int64(beyond))
	for _, h := range chosen.Pods {
		answer.Pods = append(answer.Pods, &extenderv1.MetaPod{UID: h.Pod.UID})
	}
	e.Log.Debug("victims", zap.Stringer("pod", c.Pod), zap.String("node", node),
		zap.Any("victims", answer.Pods), zap.Int64("violations", answer.NumPDBViolations))
	return answer
}
