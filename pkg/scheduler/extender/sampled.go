package extender

// nodesToFind returns the default number of nodes that kube-scheduler searches for in a cluster of all nodes,
// if that is more than 100. When so many nodes pass its own filters, it stops and sends only these
// (numFeasibleNodesToFind in k8s.io/kubernetes/pkg/scheduler).
func nodesToFind(all int) int {
	const least = 100
	return min(all, max(least, all*max(5, 50-all/125)/100))
}

// sampled reports whether a request may be about a sample of the nodes: it has as many nodes as
// kube-scheduler searches for. all is the number of nodes of the cluster.
func (e *Extender) sampled(asked, all int) bool {
	find := nodesToFind
	if e.NodesToFind != nil {
		find = e.NodesToFind
	}
	return asked < all && asked == find(all)
}
