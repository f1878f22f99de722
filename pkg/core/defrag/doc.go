// Package defrag plans evictions so that a request fits if free memory is fragmented: enough is free in
// total, and too little on each GPU. Users request a plan with "kubectl inspect gpumem defrag". The
// scheduler itself evicts only for pods of higher priority (preemption.Preempt).
//
// # Invariants
//
//   - A plan evicts a pod only if the pod fits another node, or if it has lower priority than the request
//     and Goal.Displace is set. In the second case, kube-scheduler would preempt the pod,
//     but the node's sum seems to suffice.
//   - Package placement checks every fit, on hypothetical nodes.
//   - Equal arguments give equal results.
//
// # Decisions
//
// The set of victims is optimal: all sets of one size are tried before any larger set. Plan chooses the
// new places of the victims greedily, because kube-scheduler makes the final choice.
package defrag
