package decider

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// DeletionHelps reports whether a waiting pod may fit after another pod has left its node: that pod was
// deleted, its reservation was released, or its nomination has ended. DeletionHelps removes a deleted pod from
// the cache first. So a pod that needs the memory of two deleted pods is requeued after the second deletion.
func (d *Decider) DeletionHelps(waiting, deleted *v1.Pod) bool {
	if !d.Binder.Names.Holds(deleted) {
		return false
	}
	d.forget(api.Ref(deleted))
	if deleted.Spec.NodeName == "" {
		return true // the cache may not have seen yet that the nomination has ended
	}
	return d.fits(waiting, func(q cache.Question) bool { return d.Binder.Cache.Refusal(deleted.Spec.NodeName, q) == nil })
}

// ChangeHelps reports whether a waiting pod may fit after a pod was updated. It returns true if the waiting
// pod's own request has changed and is readable, if the kubelet has admitted another pod with GPU memory, or
// if the request or the assignment of another pod has changed. For example, a pod that was exclusive may
// share its GPU now.
func (d *Decider) ChangeHelps(waiting, before, after *v1.Pod) bool {
	names := d.Binder.Names
	asks := func() (other, readable bool) {
		requestBefore, wasUnreadable := names.Request(before)
		requestAfter, unreadable := names.Request(after)
		return requestBefore.Key() != requestAfter.Key() || (wasUnreadable == nil) != (unreadable == nil), unreadable == nil
	}
	if after.UID == waiting.UID {
		other, readable := asks()
		return other && readable
	}
	if !names.Holds(after) || api.Admitted(after) != api.Admitted(before) {
		return names.Holds(after)
	}
	if maps.Equal(after.Annotations, before.Annotations) {
		return false // most updates concern the status, and there may be many waiting pods
	}
	key := names.Assignment()
	other, _ := asks()
	return other || after.Annotations[key] != before.Annotations[key]
}

// NodeHelps reports whether a waiting pod fits the node's new inventory.
func (d *Decider) NodeHelps(waiting *v1.Pod, node *v1.Node) bool {
	inv, err := d.Binder.Names.InventoryOf(node)
	if err != nil {
		return false // the node counts as having no GPUs
	}
	var holdings, nominated []placement.Holding
	if cached := d.Binder.Cache.GetNode(node.Name); cached != nil {
		holdings, nominated = withoutInventoryPods(cached), cached.Nominated
	}
	state := placement.NewNode(node.Name, inv, holdings).WithNominated(nominated)
	return d.fits(waiting, func(q cache.Question) bool { return q.Evaluate(state) == nil })
}

// withoutInventoryPods returns the pods of a node, without the kubelet's allocations. It omits pods with claims.
// Allocations and pods with claims come from the node's inventory, and the next inventory may lack them.
func withoutInventoryPods(cached *placement.Node) []placement.Holding {
	holdings := slices.DeleteFunc(cached.Holdings(), func(h placement.Holding) bool { return h.Request.Empty() })
	for i := range holdings {
		holdings[i].Allocated = nil
	}
	return holdings
}

// fits calls fitsOn with the waiting pod's request, and returns the result.
func (d *Decider) fits(waiting *v1.Pod, fitsOn func(cache.Question) bool) bool {
	req, err := d.Binder.Names.Request(waiting)
	if err != nil {
		return false // the pod is requeued when it changes
	}
	return fitsOn(cache.NewQuestion(api.Ref(waiting), req, d.Policies.GPU))
}
