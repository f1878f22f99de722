// Package placement answers four questions about one request and one node: does
// it fit, how well, on which GPUs, and if not, who would have to leave for it.
//
// Extender, device plugin, command line and simulator ask the same functions,
// so that they cannot disagree.
//
// # Where to find what
//
// request.go and node.go have what is asked for and what there is; nominate.go
// and whatif.go make nodes as they would be. fit.go decides whether, choose.go
// and near.go on which GPUs, rank.go with mix.go and prices.go on which node,
// preempt.go who leaves. verdict.go has the words for a refusal.
//
// # Invariants
//
//   - A request fits a node only when as many single GPUs as it wants each have
//     room for its share of memory and of cores. The node's sum never decides.
//   - All functions are total and without effect: any request on any node gets
//     an answer, and the same one each time.
//   - What a device has free is never negative. A device that holds more than
//     it offers (it shrank) has nothing free.
//
// # Decisions
//
// A pod's need is the kubelet's own: the larger of all containers and sidecars
// together and of each init container with the sidecars started before it
// (kubernetes.io, "Sidecar containers: resource sharing within containers").
// The kubelet gives the IDs of init containers to the containers that follow,
// so the peak is also what it accounts for.
//
// A pod that is bound to the node and not yet on any GPU in the books (it never
// passed the extender, or its annotation is broken) may land on each of them.
// It is subtracted from all until the device plugin has said where it is: for a
// moment too little is offered, never too much.
//
// Several GPUs of one pod are chosen as a set: the fewest pairs without an
// NVLink first, for one such pair holds up all that they do together; then the
// most NVLinks; then the fewest pairs on two NUMA nodes. This goes before the
// policy. Every set is tried: of eight GPUs there are at most 70 of a size.
//
// What a pod likes is ordered, never added up: a pod of its group, the model,
// nearness, the policy. Weights would have to be explained, and tuned.
//
// A pod's own policy is of GPUs and of nodes. One for nodes alone would be a
// second word for what topologySpreadConstraints and affinity say of pods.
//
// Victims are chosen per GPU, in the order in which kube-scheduler chooses a
// node, and nobody is evicted whom the others' eviction makes needless. On one
// GPU this is the least for pods of one priority; over several GPUs or
// priorities, and with budgets, it is a good choice and not always the best.
//
// A nominated pod is one for which others were evicted. It is counted on the GPU
// where it would go by the same functions, against pods of its priority or a
// lower one, so that nobody takes the room that was made for it. This is worked
// out anew for each question, and nothing is stored: room that becomes free
// elsewhere may change it.
//
// Nodes are ranked by the memory that stays free on the GPU chosen, and by what
// the pod takes from pods to come (Prices). The first alone packs well until
// pods find GPUs without CPU beside them, small GPUs full and large ones broken
// into, or no node with as many free GPUs as they need; the second sees these
// before they happen. What pods ask for is learned from those that have come
// (Mix), so a new cluster packs by the first alone. The GPU inside a node is
// chosen without prices: with them it was the same one nearly always.
//
// A refusal is a value: the reason, the request and the node. Its words are made
// of these alone (Verdict.String), so that they are the same wherever people read
// them, and nobody has to parse them back.
package placement
