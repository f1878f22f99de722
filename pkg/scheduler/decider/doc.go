// Package decider decides which nodes a pod fits, which of them is best, which GPUs the pod gets, and when
// kube-scheduler tries the pod again. Two callers use it: the plugin of gpumem-scheduler calls it at the
// extension points of kube-scheduler's own cycle, and package extender calls it for HTTP requests.
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
// Meanwhile, the pod is in one of four states. Package cache records the last three:
//
//	                          Reserve, Bind
//	   ┌────────────────────────────────────────────────────────┐
//	   │    preemption, defrag, Wake            Reserve, Bind   ▼    the watch
//	waiting ─────────────────────▶ nominated ──────────────▶ reserved ────────▶ bound
//	   ▲                              │ ▲                       │
//	   ├── the nomination has ended ──┘ │                       │
//	   └────────────────────────────────┴───────────────────────┘
//	                 Unreserve, or the binding was refused or has expired
//
// A pod leaves each of these states when it ends or is deleted.
//
// Unfit only records a waiting pod. Preemption and defrag nominate a pod through the API server. Wake
// nominates a pod that temporary refusals have kept waiting for two seconds. A nominated pod has no memory
// yet, but its memory is reserved against the pods that it precedes. A released pod is nominated again if its
// nomination has not ended, and waits otherwise.
//
// A reserved pod has GPUs of a node, from Reserve or Bind until the watch shows its binding. If the outcome
// of a binding is unknown, the pod keeps its GPUs until the binder reviews it and reads it from the API
// server.
//
// If the extender's filter leaves only one node, the pod is expected there for three seconds. An expected pod
// affects only the ranking of other pods (cache.Expect).
//
// # Invariants
//
//   - One Decider serves all profiles of a process. A second cache would allocate the same GPU twice.
//   - Reserve, and Bind in the extender, pick and reserve the GPUs in one critical section. After
//     Unreserve, the reservation remains while a binding may still succeed.
//   - Refuse evaluates the pods that kube-scheduler has on the node, because preemption removes and
//     restores pods there. It adds the pods whose bindings the watch has not shown. Reserve and
//     DeletionHelps remove a pod from the cache, but only if the watch has stored that the pod is gone.
//   - No pod is evicted for a pod that a node refuses only temporarily (MayEvict). A pod that such
//     refusals have kept waiting precedes the pods that caused them. Both rules end after a minute.
//   - A pod that fits now is tried again. Either a queueing hint requeues it (DeletionHelps, ChangeHelps,
//     NodeHelps), or Wake does within about two seconds if the cache learns of the change later than
//     kube-scheduler. Only nodes that refused the pod for lack of GPU memory count. Wake requeues a
//     pod at most once after each refusal, and the pause grows with each vain attempt.
//
// # Decisions
//
// In kube-scheduler's process, the cache follows kube-scheduler's own informers. So there is one watch, and
// the page, the metrics, the self-check and the command line read the same nodes as Refuse. The alternative
// is to derive the state of a node from kube-scheduler's NodeInfo by its generation. But kube-scheduler does
// not know a pod's GPUs between Reserve and the watch, and has no bindings of unknown outcome, and the page
// and the metrics may not read its NodeInfo. So the decider compares both whenever one of them has changed.
// This costs two look-ups for each node.
//
// kube-scheduler and the cache learn of an event from two handlers of one informer, in either order. Without
// the comparison, a pod could be refused because of a deleted pod, and preemption would then evict pods from
// a second GPU.
package decider
