package extender

// nodesToFind is how many nodes kube-scheduler looks for by default, in clusters of more
// than 100 nodes: when it has found as many that pass its own filters, it asks about these
// alone (numFeasibleNodesToFind in k8s.io/kubernetes/pkg/scheduler).
func nodesToFind(all int) int {
	const least = 100
	return min(all, max(least, all*max(5, 50-all/125)/100))
}

// sampled reports whether a question is about as many nodes as kube-scheduler looks for,
// and so perhaps about no others for that alone. All is the number of nodes of the cluster.
func (e *Extender) sampled(asked, all int) bool {
	find := nodesToFind
	if e.NodesToFind != nil {
		find = e.NodesToFind
	}
	return asked < all && asked == find(all)
}
