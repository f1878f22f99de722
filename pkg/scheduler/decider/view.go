package decider

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// agreements records the nodes for which kube-scheduler and the cache have the same pods. An entry is valid
// until either side changes. The zero value is ready to use.
type agreements struct {
	nodes sync.Map // agreement by node name
	count atomic.Int64
}

// agreement identifies a node's state in kube-scheduler and in the cache.
type agreement struct {
	generation int64
	cached     *placement.Node
}

// agree reports whether an earlier comparison has found the same pods in these two states of a node.
func (a *agreements) agree(name string, generation int64, cached *placement.Node) bool {
	last, ok := a.nodes.Load(name)
	return ok && generation != 0 && last == agreement{generation, cached}
}

// add records that both states of a node have the same pods. It clears the map when the map has more than
// twice as many entries as the cluster has nodes, because some entries belong to deleted nodes.
func (a *agreements) add(name string, generation int64, cached *placement.Node, nodes int) {
	if _, listed := a.nodes.Swap(name, agreement{generation, cached}); !listed && a.count.Add(1) > int64(2*nodes) {
		a.nodes.Clear()
		a.count.Store(0)
	}
}

// differing reports whether kube-scheduler's pods of a node differ from the cached pods, and returns the node
// with kube-scheduler's pods if they do. Parameter cached is the node in the cache. The pods differ during
// preemption, which evaluates a node without some pods, and while one of the two event handlers is behind the
// other. While neither state changes, differing compares the pods only once.
func (d *Decider) differing(node Node, cached *placement.Node) (placement.Node, bool) {
	if cached == nil || d.agreed.agree(node.Name, node.Generation, cached) {
		return placement.Node{}, false
	}
	diff := d.compare(node, cached)
	if diff.isEmpty() {
		_, nodes := d.Binder.Cache.Changes()
		d.agreed.add(node.Name, node.Generation, cached, nodes)
		return placement.Node{}, false
	}
	return diff.applyTo(*cached), true
}

// difference lists the pods of a node on which kube-scheduler and the cache disagree.
type difference struct {
	removed   []placement.Holding // pods that only the cache has
	added     []placement.Holding // bound pods that the cache lacks
	nominated []placement.Holding // nominated pods that the cache lacks
}

func (d difference) isEmpty() bool { return len(d.removed)+len(d.added)+len(d.nominated) == 0 }

func (d difference) applyTo(node placement.Node) placement.Node {
	line := node.Nominated
	node = node.Without(d.removed)
	for _, h := range d.added {
		if h.Assignment.None() {
			node.Unattributed = append(node.Unattributed, h)
		} else {
			node = node.With(h)
		}
	}
	return node.WithNominated(append(slices.Clip(line), d.nominated...))
}

// compare returns the differences between kube-scheduler's pods of a node and the cached pods. A pod whose
// binding the watch has not confirmed counts as present even if kube-scheduler lacks it, because the outcome
// of the binding is unknown. compare ignores a pod that kube-scheduler only assumes on the node if the cache
// lacks it: its reservation was released.
func (d *Decider) compare(node Node, cached *placement.Node) (diff difference) {
	names := d.Binder.Names
	listed := make(map[string]bool)
	for pod := range node.Pods {
		if !names.Holds(pod) {
			continue
		}
		uid := string(pod.UID)
		listed[uid] = true
		if hasPod(cached, uid) {
			continue
		}
		h, _ := names.Holding(pod) // the unreadable part counts as unattributed
		switch {
		case h.Request.Empty():
		case pod.Spec.NodeName == "":
			diff.nominated = append(diff.nominated, h)
		case d.boundTo(pod, node.Name):
			diff.added = append(diff.added, h)
		}
	}
	for _, h := range cached.Holdings() {
		if !listed[h.Pod.UID] && d.Binder.Cache.IsConfirmed(h.Pod.UID) && !h.Request.Empty() {
			diff.removed = append(diff.removed, h)
		}
	}
	return diff
}

// hasPod reports whether a pod is on the cached node or nominated to it.
func hasPod(node *placement.Node, uid string) bool {
	h := placement.Holding{Pod: placement.PodRef{UID: uid}}
	for i := range node.Devices {
		if slices.ContainsFunc(node.Devices[i].Pods, func(on *placement.Holding) bool { return on.Pod.UID == uid }) {
			return true
		}
	}
	return placement.HasPod(node.Unattributed, h) || placement.HasPod(node.Nominated, h)
}

// boundTo reports whether the watch has shown the pod on the node.
func (d *Decider) boundTo(pod *v1.Pod, node string) bool {
	seen := d.Binder.Cluster.Pod(pod.Namespace, pod.Name)
	return seen != nil && seen.UID == pod.UID && seen.Spec.NodeName == node
}

// catchUp removes a node's deleted pods from the cache if kube-scheduler has handled their deletion before
// the cache. It returns an error while the node has a bound pod that the cache lacks: this pod may have
// memory of any GPU.
func (d *Decider) catchUp(node Node) error {
	cached := d.Binder.Cache.GetNode(node.Name)
	if cached == nil || d.agreed.agree(node.Name, node.Generation, cached) {
		return nil
	}
	diff := d.compare(node, cached)
	for _, h := range diff.removed {
		d.forget(h.Pod)
	}
	if len(diff.added) > 0 {
		return fmt.Errorf("pod %s is on node %s, and was not heard of in full yet", diff.added[0].Pod, node.Name)
	}
	return nil
}

// forget removes a pod from the cache if the informer's store shows that the pod is gone. An informer stores
// an object before it calls the handlers, so the store is never behind the cache.
func (d *Decider) forget(ref placement.PodRef) {
	seen := d.Binder.Cluster.Pod(ref.Namespace, ref.Name)
	if d.Binder.Cache.IsConfirmed(ref.UID) && (seen == nil || string(seen.UID) != ref.UID || api.Terminal(seen)) {
		d.Binder.Cache.RemovePod(ref.UID)
	}
}
