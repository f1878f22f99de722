package cluster

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/nodefilter"
)

// NodeIndex contains the nodes with GPU memory, and the resources that any node offers. It finds the nodes
// that a pod may use.
type NodeIndex struct {
	*nodefilter.Nodes
	offered map[v1.ResourceName]bool // by any node, with or without GPU memory
	claimed map[types.UID]bool       // pods that have GPU memory by claims
	partial bool                     // some nodes of the cluster are not included
}

// NewNodeIndex returns a NodeIndex without nodes.
func NewNodeIndex() *NodeIndex {
	return &NodeIndex{Nodes: nodefilter.NewNodes(), offered: make(map[v1.ResourceName]bool), claimed: make(map[types.UID]bool)}
}

// Add adds a node with its inventory.
func (p *NodeIndex) Add(node *v1.Node, inv gpu.Inventory) {
	for name := range node.Status.Allocatable {
		p.offered[name] = p.offered[name] || api.Offers(node, name)
	}
	if len(inv.Devices) > 0 {
		p.Nodes.Add(node)
	}
	if slices.ContainsFunc(inv.Devices, func(d gpu.Device) bool { return d.Status.ByClaims }) {
		for _, pod := range inv.Allocated {
			p.claimed[types.UID(pod.UID)] = true
		}
	}
}

// HasByClaim reports whether a pod has GPU memory by a claim, according to the inventories of the added
// nodes.
func (p *NodeIndex) HasByClaim(pod *v1.Pod) bool { return p.claimed[pod.UID] }

// Unoffered returns a requested resource that is in gpumem's domain, but that gpumem does not define and no
// node offers; empty if the pod requests no such resource or not all nodes are known.
func (p *NodeIndex) Unoffered(names api.Names, pod *v1.Pod) v1.ResourceName {
	if p.partial {
		return ""
	}
	for _, resource := range names.Unoffered(pod, func(name v1.ResourceName) bool { return p.offered[name] }) {
		return resource
	}
	return ""
}

// RequestsMemory reports whether a pod requests GPU memory, or was probably meant to, because it requests a
// resource that Unoffered returns.
func (p *NodeIndex) RequestsMemory(names api.Names, pod *v1.Pod) bool {
	return names.Asks(pod) || p.Unoffered(names, pod) != ""
}

// WaitFacts returns the request of a pod without a node, and the nodes that its spec excludes.
func (p *NodeIndex) WaitFacts(names api.Names, pod *v1.Pod) inspect.WaitFacts {
	w := p.Nodes.WaitFacts(names, pod)
	if resource := p.Unoffered(names, pod); resource != "" {
		w.InVain, _ = UnofferedAdvice(names, resource)
	}
	return w
}

// UnofferedAdvice describes the fault of a pod that requests a resource returned by Unoffered. It also returns
// the remedy.
func UnofferedAdvice(names api.Names, resource v1.ResourceName) (wrong, fix string) {
	meant := names.GPUMem()
	fix = fmt.Sprintf("request %s in the pod's template", meant)
	if _, base, _ := strings.Cut(string(resource), "/"); strings.Contains(base, "core") {
		meant = names.GPUCore()
		fix = fmt.Sprintf("request %s, and %s, in the pod's template", meant, names.GPUMem())
	}
	return fmt.Sprintf("asks for %s, which no node offers: gpumem does not know it (did you mean %s?)", resource, meant), fix
}
