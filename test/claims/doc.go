// Package claims tests nodes that hand out their GPUs by ResourceClaims, on a real cluster: the
// unmodified kube-scheduler allocates, and the chart's device plugin is the driver. Only the GPUs
// are simulated.
//
// It has a cluster of its own, not that of package e2e: what is installed there reads the
// accounts of the extended resource at the end of each test, and looks for rights that are not needed.
package claims
