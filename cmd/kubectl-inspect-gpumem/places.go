package main

import (
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/reach"
)

// places are the nodes with GPU memory, as far as they and a pod say of each other
// whether it may go there, and what nodes offer at all.
type places struct {
	*reach.Nodes
	offered map[v1.ResourceName]bool // by any node, with GPU memory or without
	partial bool                     // the nodes are not all of the cluster
}

func newPlaces() *places {
	return &places{Nodes: reach.NewNodes(), offered: make(map[v1.ResourceName]bool)}
}

func (p *places) add(node *v1.Node, inv gpu.Inventory) {
	for name := range node.Status.Allocatable {
		p.offered[name] = p.offered[name] || api.Offers(node, name)
	}
	if len(inv.Devices) > 0 {
		p.Add(node)
	}
}

// unoffered returns a resource for which a pod waits in vain; empty: none is known.
func (p *places) unoffered(names api.Names, pod *v1.Pod) v1.ResourceName {
	if p.partial {
		return ""
	}
	for _, resource := range names.Unoffered(pod, func(name v1.ResourceName) bool { return p.offered[name] }) {
		return resource
	}
	return ""
}
