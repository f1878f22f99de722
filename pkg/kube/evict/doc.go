// Package evict asks the API server to evict pods: for the commands drain and defrag, and for the
// device plugin, which evicts pods that use more than they were granted. Limits says
// which pods a PodDisruptionBudget protects from eviction. Budgets says which pods kube-scheduler
// spares in preemption, which are fewer.
//
// # Invariants
//
//   - It is this very pod that is asked to go: its UID goes with the request, so one that has its
//     name by now is left alone.
//   - A pod is evicted, never deleted: PodDisruptionBudgets hold.
//   - A pod that is gone is no error. It is gone when there is none of its name, or one with another
//     UID. The API server says Conflict of that, or refuses for the budget of the pod that has the name,
//     and says both of other things too: the pod is read, and what cannot be read is an error.
//   - A refusal (429) is for now. It is said apart (Refused), and the error is the API server's own.
//
// # Decisions
//
// What follows from a refusal is the caller's: drain asks again until its time is up, the device
// plugin at its next look, and defrag ends, since its plan holds as a whole.
//
// The device plugin takes a pod that is gone for a failure, to which it logs a warning: it would
// report an eviction otherwise, in an event and in its log, that has not been.
package evict
