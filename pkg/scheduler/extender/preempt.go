package extender

import (
	"cmp"
	"context"
	"slices"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/preemption"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/evict"
	"github.com/gpumem/gpumem/pkg/report/decisions"
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
	result := &extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{}}
	if args.Pod == nil {
		return result
	}
	log := e.Log.With(zap.Stringer("pod", api.Ref(args.Pod)), zap.String("uid", string(args.Pod.UID)))
	req, err := e.Names.Request(args.Pod)
	if missing := e.Missing(); err != nil || missing != "" {
		log.Info("no preemption", zap.String("missing", missing), zap.Error(err))
		e.tellFailure(decisions.Preempt, args.Pod, cmp.Or(missing, "the pod's request cannot be read"))
		return result
	}
	proposed := metaVictims(args)
	if e.waker.Waits(string(args.Pod.UID), e.Now()) {
		log.Info("no preemption: a node takes the pod in a moment")
		e.Record(api.Ref(args.Pod), waits(len(proposed)))
		return result
	}
	for name, victims := range proposed {
		if answer := e.victims(args.Pod, req, name, victims); answer != nil && len(answer.Pods) > 0 {
			result.NodeNameToMetaVictims[name] = answer
		}
	}
	log.Info("preempt", zap.Int64("units", int64(req.Units())), zap.Int("proposed", len(proposed)), zap.Int("possible", len(result.NodeNameToMetaVictims)))
	e.Record(api.Ref(args.Pod), preempted(len(proposed), len(result.NodeNameToMetaVictims)))
	return result
}

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
func (e *Extender) victims(pod *v1.Pod, req placement.Request, nodeName string, proposed *extenderv1.MetaVictims) *extenderv1.MetaVictims {
	ref := api.Ref(pod)
	switch on, _, known := e.Cache.Where(ref.UID); {
	case known && on != nodeName:
		return nil // it may be bound there yet
	case known || req.Empty():
		return proposed // it is not for want of a GPU
	}
	node, ok := e.Cache.Node(nodeName)
	if !ok {
		return nil
	}
	node = decide.Reserved(node, ref, req, e.Policy)
	budgets := e.budgets(node)
	before := e.holdings(node, proposed.Pods)
	victims, ok := preemption.Preempt(req, node, before, budgets)
	if !ok {
		return nil
	}
	answer := &extenderv1.MetaVictims{NumPDBViolations: int64(victims.Violations)}
	// Of pods without a GPU only kube-scheduler has counted violations.
	answer.NumPDBViolations += max(0, proposed.NumPDBViolations-int64(preemption.Violations(before, budgets)))
	for _, h := range victims.Pods {
		answer.Pods = append(answer.Pods, &extenderv1.MetaPod{UID: h.Pod.UID})
	}
	e.Log.Debug("victims", zap.Stringer("pod", ref), zap.String("node", nodeName),
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
