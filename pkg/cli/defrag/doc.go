// Package defrag has the command defrag. It plans the fewest evictions that make a waiting pod fit or
// that free a GPU, and carries them out with --apply. Package pkg/core/defrag computes the plan.
//
// # Invariants
//
//   - Without --apply, the command writes nothing.
//   - If not all pods are known, there is no plan.
//   - A reservation expires by itself. The command removes its cordons at the end of a run, also after
//     an interrupt or a lost reply.
//   - The command evicts no pod for a pod that no scheduler of gpumem would place.
//
// # Decisions
//
// A reservation is a condition of the waiting pod. A cordon would exclude the waiting pod too, and
// kube-scheduler clears nominations. To free a GPU, the command cordons it, because there is no pod that
// could have the reservation.
//
// The command stops at the first refused eviction. A part of a plan evicts pods without a benefit, so
// the user has to decide how to continue. The command drain retries instead, because each eviction is
// progress.
package defrag
