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

// agreements remembers by name the nodes for which kube-scheduler and the cache were found to have
// the same pods, until either changes. The zero value is ready.
type agreements struct {
	nodes sync.Map // from a name to an agreement
	count atomic.Int64
}

// agreement is both sides of a node.
type agreement struct {
	generation int64
	known      *placement.Node
}

// on reports whether both have the same pods on a node.
func (a *agreements) on(name string, generation int64, known *placement.Node) bool {
	last, ok := a.nodes.Load(name)
	return ok && generation != 0 && last == agreement{generation, known}
}

// add records that both have the same pods on a node. Of so many nodes at most, those that are gone
// are forgotten with all others.
func (a *agreements) add(name string, generation int64, known *placement.Node, nodes int) {
	if _, there := a.nodes.Swap(name, agreement{generation, known}); !there && a.count.Add(1) > int64(2*nodes) {
		a.nodes.Clear()
		a.count.Store(0)
	}
}

// differing returns a node with the pods that kube-scheduler has on it, where the cache, which knows
// it so, has others: preemption asks about a node without some pods, and one of two handlers may be
// behind the other. While neither changes, they are compared once.
func (d *Decider) differing(node Node, known *placement.Node) (placement.Node, bool) {
	if known == nil || d.agreed.on(node.Name, node.Generation, known) {
		return placement.Node{}, false
	}
	diff := d.compare(node, known)
	if diff.none() {
		_, nodes := d.Binder.Cache.Changes()
		d.agreed.add(node.Name, node.Generation, known, nodes)
		return placement.Node{}, false
	}
	return diff.applied(*known), true
}

// difference is what kube-scheduler has otherwise than the cache.
type difference struct {
	gone      []placement.Holding // pods of the cache that kube-scheduler lacks
	come      []placement.Holding // pods that are bound, and that the cache lacks
	nominated []placement.Holding // pods that are to come, and the cache has not heard of
}

func (d difference) none() bool { return len(d.gone)+len(d.come)+len(d.nominated) == 0 }

func (d difference) applied(node placement.Node) placement.Node {
	line := node.Nominated
	node = node.Without(d.gone)
	for _, h := range d.come {
		if h.Assignment.None() {
			node.Unattributed = append(node.Unattributed, h)
		} else {
			node = node.With(h)
		}
	}
	return node.WithNominated(append(slices.Clip(line), d.nominated...))
}

// compare returns how kube-scheduler's pods of a node differ from the cache's. A pod whose binding no
// watch has confirmed counts even where kube-scheduler lacks it: the outcome is not known. One that
// kube-scheduler alone has, and that is not bound, does not count: its reservation was taken back.
func (d *Decider) compare(node Node, known *placement.Node) (diff difference) {
	names := d.Binder.Names
	there := make(map[string]bool)
	for pod := range node.Pods {
		if !names.Holds(pod) {
			continue
		}
		uid := string(pod.UID)
		there[uid] = true
		if has(known, uid) {
			continue
		}
		h, _ := names.Holding(pod) // what cannot be read of it counts as unattributed
		switch {
		case h.Request.Empty():
		case pod.Spec.NodeName == "":
			diff.nominated = append(diff.nominated, h)
		case d.boundTo(pod, node.Name):
			diff.come = append(diff.come, h)
		}
	}
	for _, h := range known.Holdings() {
		if !there[h.Pod.UID] && d.Binder.Cache.IsConfirmed(h.Pod.UID) && !h.Request.Empty() {
			diff.gone = append(diff.gone, h)
		}
	}
	return diff
}

// has reports whether a pod is in the cache's node, or to come to it.
func has(node *placement.Node, uid string) bool {
	h := placement.Holding{Pod: placement.PodRef{UID: uid}}
	for i := range node.Devices {
		if slices.ContainsFunc(node.Devices[i].Pods, func(on *placement.Holding) bool { return on.Pod.UID == uid }) {
			return true
		}
	}
	return placement.HasPod(node.Unattributed, h) || placement.HasPod(node.Nominated, h)
}

// boundTo reports whether the watch has shown that a pod is on a node.
func (d *Decider) boundTo(pod *v1.Pod, node string) bool {
	seen := d.Binder.Cluster.Pod(pod.Namespace, pod.Name)
	return seen != nil && seen.UID == pod.UID && seen.Spec.NodeName == node
}

// catchUp takes out of the cache the pods of a node that are gone, as kube-scheduler has
// heard and the cache has not. It refuses while a pod is on the node that the cache has not
// heard: it may hold any GPU.
func (d *Decider) catchUp(node Node) error {
	known := d.Binder.Cache.Look(node.Name)
	if known == nil || d.agreed.on(node.Name, node.Generation, known) {
		return nil
	}
	diff := d.compare(node, known)
	for _, h := range diff.gone {
		d.forget(h.Pod)
	}
	if len(diff.come) > 0 {
		return fmt.Errorf("pod %s is on node %s, and was not heard of in full yet", diff.come[0].Pod, node.Name)
	}
	return nil
}

// forget takes a pod out of the cache if it is gone: what the watches have stored is never
// behind what they tell.
func (d *Decider) forget(ref placement.PodRef) {
	seen := d.Binder.Cluster.Pod(ref.Namespace, ref.Name)
	if d.Binder.Cache.IsConfirmed(ref.UID) && (seen == nil || string(seen.UID) != ref.UID || api.Terminal(seen)) {
		d.Binder.Cache.RemovePod(ref.UID)
	}
}
