// Package defrag has the command defrag: it plans the fewest evictions that make a waiting pod fit,
// or free a GPU, and carries them out with --apply. The plan itself is package pkg/core/defrag's.
//
// # Invariants
//
//   - Without --apply nothing is written.
//   - There is no plan without knowing all pods.
//   - What is written for the time of a run is taken back at its end, an interrupt or an answer that
//     was lost included: the condition by which GPUs are kept for the pod, and the cordons of GPUs
//     that are freed.
//   - No pod is evicted for one that no scheduler of gpumem would place.
//
// # Decisions
//
// For a pod GPUs are kept by a condition of it, not by a cordon, which would keep the pod itself
// off; and not by a nomination, which kube-scheduler takes back. GPUs that are to be free are
// cordoned: no pod is there for whom they could be kept.
//
// The command ends at the first eviction that is refused. The plan holds as a whole: with a part of
// it the evicted pods have gone for nothing, and the user is to say what comes next. Drain asks
// again instead, since each pod that has gone is a gain.
package defrag
