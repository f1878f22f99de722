package extender

import (
	"context"
	"slices"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/preemption"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/evict"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// Neighbours tells of pods that may be evicted what the cache does not know.
type Neighbours interface {
	// PodsOn returns the pods on a node, with GPU memory or without, as the watch
	// last showed them.
	PodsOn(node string) []*v1.Pod
	// Budgets returns the PodDisruptionBudgets of a namespace.
	Budgets(namespace string) []*policyv1.PodDisruptionBudget
}

// Preempt says for each node that kube-scheduler has chosen victims on whom to
// evict there instead, so that the pod fits on one GPU. Nodes where no
// eviction helps are left out. It has no way to say what is wrong: then it
// leaves out all of them, and no pod is evicted.
func (e *Extender) Preempt(_ context.Context, args *extenderv1.ExtenderPreemptionArgs) *extenderv1.ExtenderPreemptionResult {
	result := &extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: make(map[string]*extenderv1.MetaVictims)}
	if args.Pod == nil {
		return result
	}
	proposed := metaVictims(args)
	c, unreadable, err := e.Begin(args.Pod, len(proposed))
	if unreadable != nil || err != nil || c != nil && !e.MayEvict(c, len(proposed)) {
		e.Log.Info("no preemption", zap.Stringer("pod", api.Ref(args.Pod)))
		return result
	}
	for name, victims := range proposed {
		if c != nil { // otherwise it is not for want of a GPU
			victims = e.victims(c, name, victims)
		}
		if victims != nil && len(victims.Pods) > 0 {
			result.NodeNameToMetaVictims[name] = victims
		}
	}
	if c != nil {
		e.Log.Info("preempt", zap.Stringer("pod", c.Pod), zap.Int64("units", int64(c.Request.Units())),
			zap.Int("proposed", len(proposed)), zap.Int("possible", len(result.NodeNameToMetaVictims)))
		e.Evicts(c, len(proposed), len(result.NodeNameToMetaVictims), "", noneIsEnough)
	}
	return result
}

// noneIsEnough is why evictions on none of the proposed nodes help.
const noneIsEnough = "no eviction frees enough on one GPU of the nodes that kube-scheduler asked about; it asks about none whose sum is enough"

// metaVictims returns the victims by their UIDs, in which form kube-scheduler
// takes the answer however it has asked.
func metaVictims(args *extenderv1.ExtenderPreemptionArgs) map[string]*extenderv1.MetaVictims {
	out := make(map[string]*extenderv1.MetaVictims)
	for name, victims := range args.NodeNameToMetaVictims {
		if victims != nil {
			pods := slices.DeleteFunc(slices.Clone(victims.Pods), func(p *extenderv1.MetaPod) bool { return p == nil })
			out[name] = &extenderv1.MetaVictims{Pods: pods, NumPDBViolations: victims.NumPDBViolations}
		}
	}
	for name, victims := range args.NodeNameToVictims {
		if victims == nil {
			continue
		}
		meta := &extenderv1.MetaVictims{NumPDBViolations: victims.NumPDBViolations}
		for _, pod := range victims.Pods {
			if pod != nil {
				meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(pod.UID)})
			}
		}
		out[name] = meta
	}
	return out
}

// victims returns whom to evict from one node, or nil when no eviction helps.
func (e *Extender) victims(c *decider.Cycle, nodeName string, proposed *extenderv1.MetaVictims) *extenderv1.MetaVictims {
	switch c.On() {
	case "":
	case nodeName:
		return proposed // it is not for want of a GPU
	default:
		return nil // it may be bound there yet
	}
	node, ok := e.Cache.Node(nodeName)
	if !ok {
		return nil
	}
	node = *c.View(&node)
	budgets := e.budgets(node)
	before := e.holdings(node, proposed.Pods)
	victims, ok := preemption.Preempt(c.Request, node, before, budgets)
	if !ok {
		return nil
	}
	answer := &extenderv1.MetaVictims{NumPDBViolations: int64(victims.Violations)}
	// Of pods without a GPU only kube-scheduler has counted violations.
	answer.NumPDBViolations += max(0, proposed.NumPDBViolations-int64(preemption.Violations(before, budgets)))
	for _, h := range victims.Pods {
		answer.Pods = append(answer.Pods, &extenderv1.MetaPod{UID: h.Pod.UID})
	}
	e.Log.Debug("victims", zap.Stringer("pod", c.Pod), zap.String("node", nodeName),
		zap.Any("proposed", proposed.Pods), zap.Any("victims", answer.Pods), zap.Int64("violations", answer.NumPDBViolations))
	return answer
}

// holdings returns pods of a node by their UIDs. One without a GPU holds
// nothing; one that is not known has nothing but its UID.
func (e *Extender) holdings(node placement.Node, pods []*extenderv1.MetaPod) []placement.Holding {
	known := make(map[string]placement.Holding)
	if e.Neighbours != nil {
		for _, pod := range e.Neighbours.PodsOn(node.Name) {
			// What cannot be read of it is in the cache as far as it counts.
			known[string(pod.UID)], _ = e.Names.Holding(pod)
		}
	}
	for _, h := range node.Holdings() {
		known[h.Pod.UID] = h
	}
	out := make([]placement.Holding, 0, len(pods))
	for _, p := range pods {
		h := known[p.UID]
		h.Pod.UID = p.UID
		out = append(out, h)
	}
	return out
}

// budgets returns the budgets that the node's pods with GPU memory are under.
func (e *Extender) budgets(node placement.Node) (out []preemption.Budget) {
	if e.Neighbours == nil {
		return nil
	}
	byNamespace := make(map[string][]*v1.Pod)
	for _, h := range node.Holdings() {
		if pod := e.Cluster.Pod(h.Pod.Namespace, h.Pod.Name); pod != nil && string(pod.UID) == h.Pod.UID {
			byNamespace[pod.Namespace] = append(byNamespace[pod.Namespace], pod)
		}
	}
	for namespace, pods := range byNamespace {
		out = append(out, evict.Budgets(e.Neighbours.Budgets(namespace), pods)...)
	}
	return out
}
