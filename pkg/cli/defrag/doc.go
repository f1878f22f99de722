// Package defrag has the command defrag: it plans the fewest evictions that make a waiting pod fit,
// or free a GPU, and carries them out with --apply. The plan itself is package pkg/core/defrag's.
//
// # Invariants
//
//   - Without --apply nothing is written.
//   - There is no plan without knowing all pods.
//   - A reservation ends by itself. The cordon of a GPU that is freed is undone at the end of a run, also
//     after an interrupt or a lost answer.
//   - No pod is evicted for one that no scheduler of gpumem would place.
//
// # Decisions
//
// A reservation is a condition of the waiting pod. A cordon would keep the pod itself off, and
// kube-scheduler takes nominations back. A GPU that is to be free is cordoned: there is no pod that
// could have the reservation.
//
// The command ends at the first eviction that is refused. The plan holds as a whole: with a part of
// it the evicted pods have gone for nothing, and the user is to say what comes next. Drain asks
// again instead, since each pod that has gone is a gain.
package defrag
