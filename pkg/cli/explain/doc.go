// Package explain has the command explain: why a pod waits, or why it is where it is.
//
// # Invariants
//
//   - What fits now is what package decide says, by the policy of the cluster, as the extender does.
//   - What was decided is what the extender remembers. Where it cannot be read, the rest is printed,
//     with a warning.
//   - What a placed pod uses is asked of the device plugin of its node alone. Where that does not tell,
//     the line is left out.
//   - Of a pod that waits the nodes are sorted: the first comes closest.
//
// # Decisions
//
// The two are printed apart. What is now may differ from what was when the pod was placed, and of a
// pod that is placed the GPUs as they were then say why it has its own.
//
// A Deployment's pods are known by the name of their ReplicaSet, which ends in the hash that is their
// label: to read ReplicaSets takes a right that users may lack.
package explain
