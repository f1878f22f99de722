// Package snapshot has the command snapshot: it writes nodes and pods for gpumem-sim to replay.
//
// # Invariants
//
//   - It writes names, models and amounts, and nothing else of the cluster.
//   - There is no snapshot without knowing all pods.
//
// # Decisions
//
// GPUs that take no pods are left out, with a warning: the replay knows no health.
package snapshot
