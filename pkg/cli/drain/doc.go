// Package drain has the command drain: it cordons a GPU and evicts the pods on it, and no others.
//
// # Invariants
//
//   - Pods are evicted, never deleted: PodDisruptionBudgets hold.
//   - All or none of the pods on the GPU are asked to go: one that may not keeps the others.
//   - What a pod is on is what is written of it and what the kubelet has given it, by a claim too: its
//     owner can change the first alone. Static pods, and those on no known GPU, are left, with a warning.
//     Of pods that share a claim only the first is known, and goes.
//   - The GPU remains cordoned, whatever comes of it, and the user is reminded of that.
//
// # Decisions
//
// An eviction that a budget refuses is asked for again until the time is up, as kubectl drain does.
// An interrupt ends the waiting at once, and names the pods that have not gone.
package drain
