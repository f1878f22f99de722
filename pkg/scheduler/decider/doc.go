// Package decider decides where a pod goes: which nodes it fits, which of them is best, which GPUs
// it gets, and when it is tried again. It has two faces: the plugin of gpumem-scheduler calls it at
// the points of kube-scheduler's own cycle, and package extender calls it for HTTP requests.
//
// # The path of a pod
//
//	                   plugin                          extender
//	Begin              PreFilter                       each request
//	Refuse             Filter, for one node            filter, for each node
//	Best               the hint, before Filter         –
//	Rank, Score        PreScore, Score                 filter (one node), prioritize
//	Unfit              PostFilter                      filter
//	MayEvict, Evicts   PostFilter                      preempt
//	Cheaper, Victims   preemption's dry run            preempt
//	Reserve            Reserve                         –
//	Bind, Unreserve    Bind, Unreserve                 bind
//	Wake               once a second                   once a second
//
// Meanwhile the pod is in one of three states, which package cache has:
//
//	           Unfit, preemption, defrag       Reserve, Bind              the watch
//	(waiting) ──────────────────────▶ nominated ────────────▶ reserved ────────────▶ bound
//	    ▲                                 │                      │                      │
//	    └───── the deadline has passed ───┘                      │                      │
//	    └───── Unreserve, a refused or expired binding ──────────┘                      │
//	(gone)     the pod has ended or is gone ◀───────────────────────────────────────────┘
//
// A nominated pod holds nothing. Others that come after it leave it its place. A pod that Filter has
// sent to one node is nominated there for three seconds, and only ranking counts it.
// A reserved pod has GPUs of a node, from the choice until the watch shows its binding. If the outcome
// of a binding is unknown, it keeps them until a review reads the pod from the API server.
//
// # Invariants
//
//   - One Decider serves all profiles of a process. A second cache would give a GPU away twice.
//   - Choice and reservation are one critical section (Reserve, or Bind in the extender). A
//     reservation that is taken back (Unreserve) remains while a binding may still land.
//   - Refuse decides for the pods that kube-scheduler has on the node, which preemption removes and
//     restores, and for the pods whose bindings no watch has shown. It removes a pod from the cache
//     only if the watch has stored that the pod is gone.
//   - No pod is evicted for a pod that a node refuses for a moment alone (MayEvict). A pod that such
//     refusals have kept waiting goes before the pods that caused them. Both end after a minute.
//   - A pod that fits by now is tried again: by a hint (GoneHelps, ChangeHelps, NodeHelps), or by
//     Wake within about two seconds, where the cache learns of the change later than kube-scheduler.
//     Only the nodes that refused it for want of GPU memory count. Wake tries a pod at most once after each
//     refusal, and the pause grows with each try in vain.
//
// # Decisions
//
// In kube-scheduler's process the cache follows kube-scheduler's own informers: there is one watch,
// and the page, the metrics, the self-check and the command line read the same nodes as Refuse.
// The alternative is to derive a node's state from kube-scheduler's own by its generation. But
// kube-scheduler has no GPUs of a pod between Reserve and the watch, and no binding of unknown
// outcome, and the page and the metrics may not read it. So both are compared whenever one of them
// has changed, at the price of two look-ups for each node.
//
// kube-scheduler and the cache learn of an event by two handlers of one informer, in any order.
// Without the comparison, a pod that waits for another to leave is refused for a pod that has left, and
// preemption clears a second GPU.
package decider
