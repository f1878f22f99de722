package decider

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// GoneHelps reports whether a waiting pod may fit now that another pod has left its node: that pod was
// deleted, its reservation was released, or its nomination has ended. GoneHelps removes a deleted pod from
// the cache first. So a pod that needs the memory of two deleted pods is requeued after the second deletion.
func (d *Decider) GoneHelps(waiting, gone *v1.Pod) bool {
	if !d.Binder.Names.Holds(gone) {
		return false
	}
	d.forget(api.Ref(gone))
	if gone.Spec.NodeName == "" {
		return true // the cache may not have seen yet that the nomination has ended
	}
	return d.fits(waiting, func(q cache.Question) bool { return d.Binder.Cache.Refusal(gone.Spec.NodeName, q) == nil })
}

// ChangeHelps reports whether a waiting pod may fit after a pod was updated. It returns true if the waiting
// pod's own request has changed and is readable, if the kubelet has admitted another pod with GPU memory, or
// if the request or the assignment of another pod has changed. For example, a pod that was exclusive may
// share its GPU now.
func (d *Decider) ChangeHelps(waiting, was, is *v1.Pod) bool {
	names := d.Binder.Names
	asks := func() (other, readable bool) {
		before, wasUnreadable := names.Request(was)
		now, unreadable := names.Request(is)
		return before.Key() != now.Key() || (wasUnreadable == nil) != (unreadable == nil), unreadable == nil
	}
	if is.UID == waiting.UID {
		other, readable := asks()
		return other && readable
	}
	if !names.Holds(is) || api.Admitted(is) != api.Admitted(was) {
		return names.Holds(is)
	}
	if maps.Equal(is.Annotations, was.Annotations) {
		return false // most updates concern the status, and there may be many waiting pods
	}
	key := names.Assignment()
	other, _ := asks()
	return other || is.Annotations[key] != was.Annotations[key]
}

// NodeHelps reports whether a waiting pod fits the node's new inventory.
func (d *Decider) NodeHelps(waiting *v1.Pod, node *v1.Node) bool {
	inv, err := d.Binder.Names.InventoryOf(node)
	if err != nil {
		return false // the node counts as having no GPUs
	}
	var holdings, nominated []placement.Holding
	if known := d.Binder.Cache.GetNode(node.Name); known != nil {
		holdings, nominated = onlyHeard(known), known.Nominated
	}
	state := placement.NewNode(node.Name, inv, holdings).WithNominated(nominated)
	return d.fits(waiting, func(q cache.Question) bool { return q.Evaluate(state) == nil })
}

// onlyHeard returns the pods of a node without claims and without the kubelet's grants. Both come from the
// node's inventory, and the next inventory may lack them.
func onlyHeard(known *placement.Node) []placement.Holding {
	holdings := slices.DeleteFunc(known.Holdings(), func(h placement.Holding) bool { return h.Request.Empty() })
	for i := range holdings {
		holdings[i].Allocated = nil
	}
	return holdings
}

// fits calls on with the waiting pod's request, and returns the result.
func (d *Decider) fits(waiting *v1.Pod, on func(cache.Question) bool) bool {
	req, err := d.Binder.Names.Request(waiting)
	if err != nil {
		return false // the pod is requeued when it changes
	}
	return on(cache.NewQuestion(api.Ref(waiting), req, d.Policies.GPU))
}
