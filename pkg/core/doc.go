// Package core is empty. Its subpackages make gpumem's decisions: whether a pod fits a node, on which
// GPUs, which node is best, and which pods to evict. They import only the standard library, read no
// clock, start no goroutine and do no I/O, so that they can be tested, fuzzed and simulated without a
// cluster or a GPU.
//
//   - gpu: units, devices and device IDs
//   - placement: whether a pod fits a node, on which GPUs, or the reason against it
//   - ranking: the best node
//   - preemption: the pods to evict for a pod of higher priority
//   - decide: the decision for one pod and one node, nominated pods included
//   - cache: the GPU allocations of the cluster, for the scheduler
//   - nearmiss: the distance of a node from a fit
//   - defrag: the pods to evict if free memory is fragmented
package core
