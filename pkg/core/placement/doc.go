// Package placement answers what one request makes of one node: does it fit, on
// which GPUs, and if not, why not.
//
// Extender, device plugin and command line ask the same functions. Whether
// a pod may go to a node takes more than this, and is asked of package decide. Which
// node is the best is asked of package ranking, who would have to leave a node of
// package preemption.
//
// # Where to find what
//
// request.go and node.go have what is asked for and what there is; whatif.go
// makes nodes as they would be. checks.go has the checks in their order, fit.go decides whether, choose.go and near.go on
// which GPUs, policy.go what the policies prefer. verdict.go has why not. How close a refusal comes is for package closest, its words are
// made by package reasons.
//
// # Invariants
//
//   - A request fits a node only when as many single GPUs as it wants each have
//     enough free for its share of memory and of cores. The node's sum never decides.
//   - All functions are total and without effect: any request on any node gets
//     an answer, and the same one each time.
//   - What a device has free is never negative. A device that holds more than
//     it offers (it shrank) has nothing free.
//   - A request is a value: two of the same are equal (==), and it does not change once made.
//     What is kept for requests is kept by Request.Key, which is all of a request but what
//     Key names. So no field can be forgotten where answers are kept or pods are exchanged.
//
// # Decisions
//
// The lists of a request, containers and globs, are made of links, each of them once in
// memory (package unique). To compare two is to compare two pointers, and nothing is written out
// or parsed again for it.
//
// A pod's need is the kubelet's own: the larger of all containers and sidecars
// together and of each init container with the sidecars started before it
// (kubernetes.io, "Sidecar containers: resource sharing within containers").
// The kubelet gives the IDs of init containers to the containers that follow,
// so the peak is also what it accounts for.
//
// A pod that is bound to the node and not yet on any GPU in the cache (it never
// passed the extender, or its annotation is broken) may land on each of them.
// It is subtracted from all until the device plugin has said where it is: for a
// moment too little is offered, never too much.
//
// What is written of a pod its owner can change; what the node's inventory says that the kubelet
// has given to the pod (gpu.Inventory.Allocated) its owner cannot. On each GPU the larger of the
// two counts: an entry that is older than a correction makes the pod count too much
// for a moment, and none makes it count too little. An entry of a pod that is not on the node
// counts nothing. NewNode is the one place where this is decided, and what is known goes with
// the pod (Holding.Allocated). For kube-scheduler's sum such a pod counts once, as the
// kubelet has given it.
//
// Several GPUs of one pod are chosen as a set: the fewest pairs without an
// NVLink first, for one such pair holds up all that they do together; then the
// most NVLinks; then the fewest pairs on two NUMA nodes. This goes before the
// policy. Every set is tried: of eight GPUs there are at most 70 of a size.
//
// What a pod likes is ordered, never added up: a pod of its group, the model,
// nearness, the policy. Weights would have to be explained, and tuned. The first
// three are of nodes too, and Choice compares them.
//
// The GPU inside a node is chosen by what is left free on it alone. With the prices
// by which nodes are ranked it was the same one nearly always.
//
// One table has the policies (policy.go). Under a policy that it lacks, all GPUs and
// nodes are equal; the parsers of flags and annotations (package api) reject one.
//
// A refusal is a value: the reason, the request and the node. Its words are made
// of these alone (package reasons), so that they are the same wherever people read
// them, and no program has to parse them back.
package placement
