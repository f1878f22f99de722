// Package decisions records the extender's answers about pods, with the nodes and GPUs that it
// considered.
//
// # Invariants
//
//   - The log is bounded. It has a maximum number of pods, and drops the pod whose last decision is the
//     oldest. For each pod it has the last decision of each verb, and for each decision at most MaxNodes
//     nodes.
//   - No decision depends on the log, and the log ends with the process.
//
// # Decisions
//
// kube-scheduler asks again and again about a waiting pod, among thousands of others. The last decision
// of each verb explains the pod's state, so the log counts earlier ones and drops them.
//
// The log is in memory, and not written as Events. An Event for each answer would be thousands of
// requests, and kube-scheduler's own Event has the reasons already.
package decisions
