// Package preemption picks the pods to evict from a node so that a request fits. Package placement
// checks the fit on hypothetical nodes, and package decide reserves the freed memory.
//
// # Invariants
//
//   - A victim has a lower priority than the request, or kube-scheduler has proposed it. The request
//     fits the node without the victims.
//   - The package has no state. Equal arguments give equal results.
//
// # Decisions
//
// Preempt compares GPUs as kube-scheduler compares nodes (see Cheaper). It keeps each pod whose
// eviction the other evictions make needless. On one GPU and for pods of equal priority, the number of
// victims is minimal. With several GPUs, different priorities or budgets, the number is not always
// minimal.
package preemption
