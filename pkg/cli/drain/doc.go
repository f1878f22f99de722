// Package drain has the command drain, which cordons a GPU and evicts only the pods on it.
//
// # Invariants
//
//   - The command evicts pods and never deletes them, so PodDisruptionBudgets apply.
//   - If a pod on the GPU belongs to a DaemonSet or has no controller, the command stops before its first eviction,
//     unless a flag skips or evicts such pods.
//   - A pod is on a GPU if its annotation names the GPU, or if the kubelet allocated the GPU to it, also
//     by a claim. The pod's owner can change the annotation, but not the allocation. Static pods and pods
//     on no known GPU remain, with a warning. If pods share a claim, the command evicts only the first
//     pod, because the node's inventory attributes a claim to its first pod.
//   - The GPU remains cordoned in every case, and a message shows how to uncordon it.
//
// # Decisions
//
// If a budget refuses an eviction, the command retries it until --timeout, as kubectl drain does. On an
// interrupt, the command stops waiting at once and lists the remaining pods.
package drain
