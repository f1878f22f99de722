// Package defrag has the command defrag. It plans the fewest evictions that make a waiting pod fit or
// that free a GPU, and carries them out with --apply. Package pkg/core/defrag computes the plan.
//
// # Invariants
//
//   - Without --apply, the command writes nothing.
//   - If the command cannot list all pods, it makes no plan.
//   - A reservation expires by itself. The command removes its cordons before it returns, also after an interrupt or
//     a lost reply.
//   - The command evicts nothing for a waiting pod that no scheduler of gpumem would place.
//
// # Decisions
//
// The command reserves the plan's GPUs for the waiting pod by a condition of this pod. A cordon would exclude the
// waiting pod too, and kube-scheduler would clear a nomination. To free a GPU, the command cordons the GPU, because
// no pod waits that could have the reservation.
//
// The command stops at the first refused eviction. A partly executed plan has evicted pods without a
// benefit, so the user has to decide how to continue. The command drain retries instead, because each of
// its evictions is progress.
package defrag
