// Package reconcile keeps what is written of a node's pods what the kubelet made of them. On the
// node, it is the only writer of a pod's annotations.
//
// # Protocol
//
// What differs from a pod's annotations is corrected before a container of the pod starts
// (Correct), if the kubelet has reported by then that it has admitted the pod, and by a loop (Run)
// after each allocation, when pods change, and every minute.
//
// One function computes what is to be written of a pod (wanted), one writes it (write). That is
// where the pod is, or is to be since the kubelet has given its GPUs to another
// (allocation.Reconcile); the level at which it was given them; and what goes with that, the
// indexes. A pod with several of these wrong is written once.
//
// Where a pod counts for less by its annotation than the kubelet has given it, the node's inventory
// has what it was given too (nodestate.State.Allocations), which the pod's owner cannot write.
//
// # Invariants
//
//   - One call at a time writes of a pod. The second leaves it to the loop, which looks again.
//   - What is to be written is computed from the annotations of that moment, not from those that
//     were there when the kubelet was asked.
//   - Pods that wait are written before those that have begun. If one that waits could not be
//     written, neither is any that is interchangeable with it: what that one lost can be computed
//     only while it is written of the others.
//   - No call is made under a lock.
package reconcile
