// Package nodestate is what a node knows: what the kubelet has given to its pods, what was planned
// for each, at which level (State); and what the node offers (Offers).
//
// # Protocol
//
// Look asks the kubelet (PodResources) who has which IDs and which pods it lists, and adds what the
// API server has of the pods, and what was remembered: answers of Allocate that the kubelet does
// not report yet (Remember, HandOut), and what was written of pods (Wrote). It asks a kubelet that
// does not answer again for a while. Then the last answer counts, and what Allocate has given
// since: the containers of a pod keep together. Ask asks once, and fails where Look remembers.
//
// Allocations returns what the kubelet has given to pods that count for less by their annotations. It has
// no entry for pods whose annotations were always true. An entry ends with its pod, and not when
// the annotation is right again: the kubelet's account of a pod does not change, and its owner
// could write less again at any moment.
//
// # Invariants
//
//   - No call is made under a lock.
//   - The level of a pod is what its container was given, also after a restart, and not what was
//     written of the pod when it was bound.
//   - Pods are read before the kubelet is asked (allocation.Reconcile says why).
//   - An offer is computed when the source has other GPUs, not for each reader. Readers do not
//     change it.
//
// # Decisions
//
// A list that would be larger than the kubelet receives is not sent at all: the
// kubelet would drop it without a word. The node then offers nothing and names
// the unit that fits.
//
// The list carries no NUMA topology: the kubelet takes aligned IDs before it
// looks at the preference, and the preference is what makes IDs and assignment
// agree.
package nodestate
