// Package defrag plans whom to evict so that a request gets memory that is free
// in all and on no GPU alone.
//
// Only people ask for such a plan (kubectl inspect gpumem defrag): the scheduler
// evicts only for a pod of higher priority, see preemption.Preempt.
//
// # Invariants
//
//   - A pod is evicted only when it fits elsewhere, or when the
//     request goes before it and may do without: the latter is preemption where a
//     node's sum hides that it is needed.
//   - What fits is asked of package placement, on nodes as they would be.
//   - Like placement, the package imports the standard library only, and the same
//     question has the same answer.
//
// # Decisions
//
// A plan is exact in whom it evicts: all sets of pods of a size are looked at
// before any larger one. It is greedy in where they go, which kube-scheduler
// decides in the end.
package defrag
