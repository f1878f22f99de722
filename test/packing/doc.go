// Package packing proves docs/packing.md: it replays pod lists on node lists with the product's
// placement code and with the policies that the page compares it with.
//
// # Protocol
//
// A run follows the simulator of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
// Fragmentation Gradient Descent" (Weng et al., USENIX ATC 2023). It shuffles the pods of a trace and
// draws more of them until they request 130 % of the GPU memory. No pod leaves, and the run drops a
// pod that fits no node. In a run with departures, pods stay for an exponential time. The policies of
// the paper depend on rounding, so TestPublishedCurves compares each seed with the published curve.
//
// # Invariants
//
//   - A run depends on trace, policy and seed alone: it reads no clock and no map order.
//   - The fleet refuses a placement that does not fit, whatever the policy returns.
//   - gpumem's policies are the packages cache, ranking and decide. This package repeats none of them.
//   - Pods without GPU memory go to the node that kube-scheduler scores highest, because it asks no
//     extender about them.
package packing
