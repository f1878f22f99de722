package extender

// nodesToFind returns kube-scheduler's default for the number of feasible nodes to find in a cluster with the
// given number of nodes. In clusters of more than 100 nodes, kube-scheduler stops when this number of nodes
// has passed its own filters, and sends only these (numFeasibleNodesToFind in
// k8s.io/kubernetes/pkg/scheduler).
func nodesToFind(all int) int {
	const least = 100
	return min(all, max(least, all*max(5, 50-all/125)/100))
}

// isSampled reports whether a request may be about a sample of the nodes: it has exactly as many nodes as
// kube-scheduler searches for. Parameter asked is the number of nodes in the request, and all is the number
// in the cluster.
func (e *Extender) isSampled(asked, all int) bool {
	find := nodesToFind
	if e.NodesToFind != nil {
		find = e.NodesToFind
	}
	return asked < all && asked == find(all)
}
