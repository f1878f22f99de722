// Package evict evicts pods through the API server, for the commands drain and defrag and for the device
// plugin, which evicts pods that exceed their grant. Limits returns the pods that a PodDisruptionBudget
// protects from eviction. Budgets returns the pods that kube-scheduler spares in preemption: these are
// fewer.
//
// # Invariants
//
//   - An eviction contains the pod's UID, so it never affects a new pod of the same name.
//   - Pods are evicted and never deleted, so PodDisruptionBudgets apply.
//   - A pod that is gone is not an error. It is gone if no pod has its name, or if a pod with another
//     UID has its name. The API server then returns Conflict, or a refusal because of the new pod's
//     budget. Both errors have other causes too, so Pod then reads the pod. If this read fails, Pod
//     returns the error of the eviction.
//   - A refusal (429) is temporary. IsRefusal detects it; the error is the API server's.
//
// # Decisions
//
// The caller handles a refusal: drain retries until its timeout, the device plugin retries at its next
// check, and defrag stops, because its plan works only as a whole.
//
// The device plugin logs a warning if the pod is already gone. Otherwise its event and its log would
// report an eviction that did not happen.
package evict
