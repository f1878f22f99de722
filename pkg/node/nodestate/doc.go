// Package nodestate is what a node knows: what the kubelet has given to its pods, what was planned
// for each, at which level (State); and what the node offers (Offers).
//
// # Protocol
//
// Look asks the kubelet (PodResources) who has which IDs and which pods it lists, and adds what the
// API server has of the pods, recorded grants that the kubelet does not list (package record), and the assignments that
// this node wrote (Wrote). It asks a kubelet that does not answer again for a while. Then the last answer counts, and
// the grants since: the containers of a pod keep together. Ask asks once, and fails where Look falls back to these.
//
// Allocations returns what the kubelet has given to pods that count for less by their annotations. It has
// no entry for pods whose annotations were always true. An entry ends with its pod, and not when
// the annotation is right again: the kubelet's account of a pod does not change, and its owner
// could write less again at any moment. The record has the entries, so the next process knows them.
//
// # Invariants
//
//   - No call is made under a lock.
//   - The level of a container is the recorded one. The annotation, which the Binding wrote, counts only where
//     none is recorded.
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
