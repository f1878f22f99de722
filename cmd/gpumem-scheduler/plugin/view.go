package plugin

import (
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// agreed is, by node, the last state in which NodeInfo and the cache had the same pods.
type agreed struct{ nodes sync.Map }

// both is a node in NodeInfo and in the cache.
type both struct {
	generation int64
	node       *placement.Node
}

// differing returns a node with the pods that NodeInfo has, where the cache has others:
// preemption asks about a node without some pods, and one of two watches may be behind the
// other. While neither changes, they are compared once.
func (p *Plugin) differing(info fwk.NodeInfo) (placement.Node, bool) {
	name := info.Node().Name
	node := p.Cache.Look(name)
	if node == nil {
		return placement.Node{}, false
	}
	now := both{info.GetGeneration(), node}
	if last, ok := p.agreed.nodes.Load(name); ok && last == now {
		return placement.Node{}, false
	}
	d := p.compare(info, node)
	if d.none() {
		p.agreed.nodes.Store(name, now)
		return placement.Node{}, false
	}
	return d.applied(*node), true
}

// difference is what NodeInfo has otherwise than the cache.
type difference struct {
	gone      []placement.Holding // pods of the cache that NodeInfo lacks
	come      []placement.Holding // pods that are bound, and that the cache lacks
	nominated []placement.Holding // pods that are to come, of which the cache has not heard
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

// compare returns what NodeInfo has otherwise than the cache. A pod of whose binding no watch
// has told counts though NodeInfo may lack it: its outcome is not known. One that is in
// NodeInfo alone and is not bound is leaving: its reservation was taken back.
func (p *Plugin) compare(info fwk.NodeInfo, node *placement.Node) (d difference) {
	there := make(map[string]bool)
	for _, i := range info.GetPods() {
		pod := i.GetPod()
		if !p.conf.Names.Holds(pod) {
			continue
		}
		uid := string(pod.UID)
		there[uid] = true
		if has(node, uid) {
			continue
		}
		h, _ := p.conf.Names.Holding(pod) // what cannot be read of it counts as unattributed
		switch {
		case h.Request.Empty():
		case pod.Spec.NodeName == "":
			d.nominated = append(d.nominated, h)
		case p.boundTo(pod, node.Name):
			d.come = append(d.come, h)
		}
	}
	for _, h := range node.Holdings() {
		if !there[h.Pod.UID] && p.Cache.Heard(h.Pod.UID) && !h.Request.Empty() {
			d.gone = append(d.gone, h)
		}
	}
	return d
}

// has reports whether a pod is in the cache's node, or to come to it.
func has(node *placement.Node, uid string) bool {
	h := placement.Holding{Pod: placement.PodRef{UID: uid}}
	for i := range node.Devices {
		if placement.HasPod(node.Devices[i].Pods, h) {
			return true
		}
	}
	return placement.HasPod(node.Unattributed, h) || placement.HasPod(node.Nominated, h)
}

// boundTo reports whether the watch has told that a pod is on a node.
func (p *Plugin) boundTo(pod *v1.Pod, node string) bool {
	told := p.Watch.Pod(pod.Namespace, pod.Name)
	return told != nil && told.UID == pod.UID && told.Spec.NodeName == node
}

// catchUp takes out of the cache the pods of a node that are gone, of which kube-scheduler has
// heard and the cache has not. It refuses while a pod is on the node of which the cache has not
// heard: it may hold any GPU.
func (p *Plugin) catchUp(info fwk.NodeInfo) error {
	node := p.Cache.Look(info.Node().Name)
	if node == nil {
		return nil
	}
	d := p.compare(info, node)
	for _, h := range d.gone {
		p.forget(h.Pod)
	}
	if len(d.come) > 0 {
		return fmt.Errorf("pod %s is on node %s, and was not heard of in full yet", d.come[0].Pod, node.Name)
	}
	return nil
}

// forget takes a pod out of the cache if it is gone: what the watches have stored is never
// behind what they tell.
func (p *Plugin) forget(ref placement.PodRef) {
	told := p.Watch.Pod(ref.Namespace, ref.Name)
	if p.Cache.Heard(ref.UID) && (told == nil || string(told.UID) != ref.UID || api.Terminal(told)) {
		p.Cache.RemovePod(ref.UID)
	}
}
