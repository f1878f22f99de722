// Package replay places the pods of a trace on the nodes of a fleet, one after
// the other, and records what becomes of the fleet: how much is allocated, how
// much lies idle in pieces that no pod can use, what had to be turned away.
//
// # Who needs it
//
// Who runs a cluster whose GPUs are half empty asks which policy would fill it, and what four more
// nodes would bring, before anything is changed (docs/packing.md, gpumem-sim replay). A snapshot of
// the cluster is enough for an answer. Some policies that others have are there to compare with.
//
// What research needs but that is in the tests of this package: the policies of the paper below,
// runs as its simulator makes them, pods that leave, and traces of other clusters
// (make bench-packing).
//
// # Protocol
//
// A run (Watch) follows the simulator of "Beware of
// Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
// Descent" (Weng et al., USENIX ATC 2023): the pods of a trace are shuffled and
// drawn again until they ask for a multiple of the fleet's GPUs, no pod leaves,
// and a pod that fits nowhere is dropped.
//
// # Invariants
//
//   - A run is a function of trace, policy and seed: no clock, no map order.
//   - A pod takes CPU and host memory of its node as well as GPUs. The fleet refuses
//     what does not fit, whatever a policy says.
//   - Policies see pods as they come.
//   - kube-scheduler places the pods that ask for no GPU memory, by
//     LeastAllocated and BalancedAllocation and whatever the policy: no extender is asked about
//     them.
//   - The policies of gpumem are those of packages placement and ranking, on the
//     state of package cache, with the scores that the extender sends. Nothing of them is
//     written here a second time.
//
// # Decisions
//
// The policies of the paper score in whole numbers and take the first node of
// the best: their results depend on that rounding, so the tests compare them with the published
// curves of each seed.
//
// A score is kept for each kind of pod and node until the node changes. That is
// what makes a run of 10,000 pods on 1,200 nodes a matter of a second.
package replay
