package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// EventsToRegister says what may make room for a pod that was refused.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}, QueueingHintFn: p.afterDelete},
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update}, QueueingHintFn: p.afterUpdate},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAnnotation}, QueueingHintFn: p.afterNode},
	}, nil
}

func hint(queue bool) (fwk.QueueingHint, error) {
	if queue {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// afterDelete wakes the pod where it fits the node that a pod with GPU memory has left, whose
// reservation there was taken back, or that has ceased to be nominated to it. The cache is made
// to know of the first: a pod that waits for two to leave is woken after the second.
func (p *Plugin) afterDelete(_ klog.Logger, waiting *v1.Pod, before, _ any) (fwk.QueueingHint, error) {
	gone, ok := before.(*v1.Pod)
	if !ok {
		return fwk.Queue, nil
	}
	if !p.conf.Names.Holds(gone) {
		return fwk.QueueSkip, nil
	}
	p.forget(api.Ref(gone))
	if gone.Spec.NodeName == "" {
		return fwk.Queue, nil // the cache may not have heard that the nomination is over
	}
	return hint(p.fits(waiting, func(q cache.Question) bool { return p.Cache.Refused(gone.Spec.NodeName, q) == nil }))
}

// afterUpdate wakes the pod where it asks for something else now, or another was admitted by
// its kubelet or corrected by its device plugin.
func (p *Plugin) afterUpdate(_ klog.Logger, waiting *v1.Pod, before, after any) (fwk.QueueingHint, error) {
	old, wasPod := before.(*v1.Pod)
	pod, isPod := after.(*v1.Pod)
	if !wasPod || !isPod {
		return fwk.Queue, nil
	}
	if pod.UID == waiting.UID {
		was, wasUnreadable := p.conf.Names.Request(old)
		is, unreadable := p.conf.Names.Request(pod)
		return hint(unreadable == nil && (wasUnreadable != nil || was.Key() != is.Key()))
	}
	key := p.conf.Names.Assignment()
	return hint(p.conf.Names.Holds(pod) && (api.Admitted(pod) != api.Admitted(old) || pod.Annotations[key] != old.Annotations[key]))
}

// afterNode wakes the pod where it fits what the node offers now.
func (p *Plugin) afterNode(_ klog.Logger, waiting *v1.Pod, _, after any) (fwk.QueueingHint, error) {
	node, ok := after.(*v1.Node)
	if !ok {
		return fwk.Queue, nil
	}
	inv, err := p.conf.Names.InventoryOf(node)
	if err != nil {
		return fwk.QueueSkip, nil //nolint:nilerr // it counts as having no GPUs
	}
	var holdings, nominated []placement.Holding
	if known := p.Cache.Look(node.Name); known != nil {
		holdings, nominated = known.Holdings(), known.Nominated
	}
	state := placement.NewNode(node.Name, inv, holdings).WithNominated(nominated)
	return hint(p.fits(waiting, func(q cache.Question) bool { return q.Ask(state) == nil }))
}

// fits asks about a waiting pod, by what it says of itself.
func (p *Plugin) fits(waiting *v1.Pod, on func(cache.Question) bool) bool {
	req, err := p.conf.Names.Request(waiting)
	if err != nil {
		return false // it is woken when it is changed
	}
	return on(cache.NewQuestion(api.Ref(waiting), req, p.conf.Policies.GPU))
}
