// Package history records the scheduler's decisions about pods, with the nodes and GPUs that it considered. The
// scheduler is gpumem-scheduler or gpumem-extender.
//
// # Invariants
//
//   - The log is bounded. It has a maximum number of pods, and drops the pod whose last decision is the
//     oldest. For each pod it has the last decision of each verb, and for each decision at most MaxNodes
//     nodes.
//   - No scheduling decision reads the log. A restart of the process empties it.
//
// # Decisions
//
// kube-scheduler repeats its requests for each of thousands of waiting pods. The last decision of each
// verb explains the pod's state, so of earlier attempts the log has only the number.
//
// The scheduler keeps the log in memory and writes no Events. An Event for each decision would cost thousands of API
// requests, and kube-scheduler's own Event already has the reasons.
package history
