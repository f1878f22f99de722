// Package replay places the pods of a trace on the nodes of a fleet, one after
// the other, and records what becomes of the fleet: how much is allocated, how
// much lies idle in pieces that nobody can use, what had to be turned away.
//
// # Protocol
//
// Two kinds of runs. Arrivals (Published) follow the simulator of "Beware of
// Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
// Descent" (Weng et al., USENIX ATC 2023): the pods of a trace are shuffled and
// drawn again until they ask for a multiple of the fleet's GPUs, nobody leaves,
// and a pod that fits nowhere is dropped. Arrive is the same, but for pods without GPU
// memory, see below. Churn draws pods from the trace with
// replacement; each leaves after an exponential time, and the rate is such that
// on average a given part of the fleet would be in use were nobody turned away.
//
// # Invariants
//
//   - A run is a function of trace, policy and seed: no clock, no map order.
//   - A pod takes CPU and host memory of its node beside GPUs. The fleet refuses
//     what has no room, whatever a policy says.
//   - Policies see pods as they come. Only those of the paper that are defined by
//     the popularity of all pods of a trace (FGD) see the trace beforehand.
//   - In Arrive, Watch and Churn, kube-scheduler places the pods that ask for no GPU memory, by
//     LeastAllocated and BalancedAllocation and whatever the policy: no extender is asked about
//     them. Only Published has the policies place all pods, as the published runs did.
//   - The policies of gpumem are those of packages placement and ranking, on the
//     books of package cache, with the scores that the extender sends. Nothing of them is
//     written here a second time.
//
// # Decisions
//
// The policies of the paper score in whole numbers and take the first node of
// the best: their results depend on that rounding. With exact numbers FGD loses
// three points of allocation, so the tests hold them against the published
// curves of each seed.
//
// A score is kept for each kind of pod and node until the node changes. That is
// what makes a run of 10,000 pods on 1,200 nodes a matter of a second.
package replay
