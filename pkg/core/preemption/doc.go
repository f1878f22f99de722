// Package preemption says who would have to leave a node so that a request fits
// it. What fits is asked of package placement, on nodes as they would be. What is
// kept for the pods that others leave for, package decide says.
//
// # Invariants
//
//   - Victims have a lower priority than the request, or kube-scheduler has
//     proposed them. Without them the request fits.
//   - Nothing is stored: the same question has the same answer.
//
// # Decisions
//
// Victims are chosen per GPU, in the order in which kube-scheduler chooses a
// node, and no pod is evicted whom the others' eviction makes needless. On one
// GPU this is the least for pods of one priority; over several GPUs or
// priorities, and with budgets, it is a good choice and not always the best.
package preemption
