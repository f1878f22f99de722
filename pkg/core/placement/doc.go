// Package placement decides whether a request fits a node, picks the GPUs, and returns the reason for
// a refusal. The schedulers, the device plugin and the command line use the same functions. Package
// decide adds nominated pods, package ranking compares nodes, and package preemption picks victims.
//
// request.go and node.go define requests and nodes; whatif.go derives changed nodes. checks.go lists
// the checks in their order, fit.go evaluates them, choose.go and near.go pick GPUs by the policies of
// policy.go, and verdict.go defines the refusals. Package nearmiss computes the distance of a refusal
// from a fit, and package reasons renders it.
//
// # Invariants
//
//   - A request fits a node only if as many single GPUs as it requests each have enough free memory
//     and cores for its share. The node's sum never decides.
//   - All functions are total and have no side effects. Equal arguments give equal results.
//   - Free memory of a device is never negative. A device that shrank below the allocated memory has
//     none free.
//   - A Request is an immutable value: equal requests compare with ==. Caches use Request.Key, which
//     contains every field except those that Key removes. So no new field can be missing in a cache
//     key or in the comparison of interchangeable pods.
//
// # Decisions
//
// The containers of a request are a linked list of interned nodes (package unique). Comparing two
// lists compares two pointers and renders no text.
//
// A pod's requirement follows the kubelet. It is the sum over app containers and sidecars or, if larger,
// the sum of an init container and the sidecars started before it (kubernetes.io, "Sidecar containers:
// resource sharing within containers"). The kubelet passes the IDs of init containers to later
// containers, so this peak is also the amount that the kubelet allocates.
//
// A pod may be bound to the node without a known GPU, because no scheduler of gpumem placed the pod or
// because its annotation is malformed. The pod can be on any GPU, so FreeOn subtracts its request from
// each GPU until the device plugin publishes the pod's GPU. Free memory is underestimated for a moment,
// and never overestimated.
//
// A pod's owner can change its annotations, but not the node's inventory with the kubelet's allocations
// (gpu.Inventory.Allocated). So NewNode charges the larger of the annotation's amount and the kubelet's
// amount to each GPU. An outdated entry of the inventory can make the charge too large for a moment, but
// never too small. NewNode alone adds the inventory's entries to their pods (Holding.Allocated), and
// ignores entries for pods that are not on the node. In kube-scheduler's sum (Unrequested), a pod with
// both amounts counts once, with the kubelet's allocation.
//
// Preferences are compared in order and never added up: group, model, distance, policy. Weights would
// need an explanation and tuning. Choice compares the first three between nodes too. The prices that
// rank nodes play no part here, because they almost always picked the same GPU as the policy.
//
// Package reasons renders a refusal from its reason, request and node alone, so the message is the same
// everywhere, and no program parses it.
package placement
