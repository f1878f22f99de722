package decider

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// GoneHelps reports whether a waiting pod fits the node that a pod with GPU memory has left, whose
// reservation there was taken back, or that has ceased to be nominated to it. The cache is made
// to know of the first: a pod that waits for two to leave is woken after the second.
func (d *Decider) GoneHelps(waiting, gone *v1.Pod) bool {
	if !d.Binder.Names.Holds(gone) {
		return false
	}
	d.forget(api.Ref(gone))
	if gone.Spec.NodeName == "" {
		return true // the cache may not have heard that the nomination is over
	}
	return d.fits(waiting, func(q cache.Question) bool { return d.Binder.Cache.Refused(gone.Spec.NodeName, q) == nil })
}

// ChangeHelps reports whether a waiting pod asks for something else now, or another pod was admitted
// by its kubelet, corrected by its device plugin, or asks for something else: one that was exclusive
// may let others on its GPU now.
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
		return false // most changes are of the status, and there may be many waiting pods
	}
	key := names.Assignment()
	other, _ := asks()
	return other || is.Annotations[key] != was.Annotations[key]
}

// NodeHelps reports whether a waiting pod fits what a node offers now.
func (d *Decider) NodeHelps(waiting *v1.Pod, node *v1.Node) bool {
	inv, err := d.Binder.Names.InventoryOf(node)
	if err != nil {
		return false // it counts as having no GPUs
	}
	var holdings, nominated []placement.Holding
	if known := d.Binder.Cache.Look(node.Name); known != nil {
		holdings, nominated = onlyHeard(known), known.Nominated
	}
	state := placement.NewNode(node.Name, inv, holdings).WithNominated(nominated)
	return d.fits(waiting, func(q cache.Question) bool { return q.Evaluate(state) == nil })
}

// onlyHeard returns the pods of a node without claims and grants of the kubelet: these come from the
// node's inventory, and the next one may lack them.
func onlyHeard(known *placement.Node) []placement.Holding {
	holdings := slices.DeleteFunc(known.Holdings(), func(h placement.Holding) bool { return h.Request.Empty() })
	for i := range holdings {
		holdings[i].Allocated = nil
	}
	return holdings
}

// fits asks about a waiting pod, by what it says of itself.
func (d *Decider) fits(waiting *v1.Pod, on func(cache.Question) bool) bool {
	req, err := d.Binder.Names.Request(waiting)
	if err != nil {
		return false // it is woken when it is changed
	}
	return on(cache.NewQuestion(api.Ref(waiting), req, d.Policies.GPU))
}
