// Package explain has the command explain, which explains why a pod waits, or why it is on its node.
//
// # Invariants
//
//   - Package decide computes whether a pod fits now, by the cluster's policy, as the scheduler does.
//   - Past decisions are the scheduler's records. If the command cannot read them, it prints a warning and the rest
//     of the answer.
//   - For the usage of a placed pod, the command reads only the device plugin of the pod's node. If that
//     plugin does not answer, the command prints the usage in the pod's annotation, or omits the line.
//   - The nodes of a waiting pod are sorted by how closely the pod fits.
//
// # Decisions
//
// The output separates the current state from past decisions, because the state may have changed since
// the pod was placed. For a placed pod, the state of the GPUs at its binding explains the choice.
//
// The command derives a pod's Deployment from the name of its ReplicaSet, which ends in the pod's label
// pod-template-hash. Reading ReplicaSets would require a right that users may lack.
package explain
