// Package decider filters and ranks nodes for a pod, picks the pod's GPUs, and requeues pods that fit later.
// It has two callers: the plugin of gpumem-scheduler calls it at the extension points of kube-scheduler's own
// cycle, and package extender calls it for HTTP requests.
//
// # The path of a pod
//
//	                   plugin                          extender
//	Begin              PreFilter                       each request
//	Refuse             Filter, for one node            filter, for each node
//	Best               node hint, before Filter        filter, if the extender chooses the node
//	Rank, Score        PreScore, Score                 filter (one node), prioritize
//	Unfit              PostFilter                      filter
//	MayEvict, Evicts   PostFilter                      preempt
//	Cheaper, Victims   preemption's dry run            preempt
//	Reserve            Reserve                         –
//	Bind, Unreserve    Bind, Unreserve                 bind
//	Wake               once a second                   once a second
//
// On this path, the pod is in one of four states. Package cache records the last three:
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
// Unfit only records a waiting pod. Preemption and defrag nominate a pod through the API server. So does
// Wake, if kube-scheduler asked the extender about a sample of the nodes and the pod fits a node outside it.
// Wake nominates a pod only in the cache after two seconds of temporary refusals: these end by themselves,
// usually within a second, without an eviction (decide.Refusal). A nominated pod has no GPUs yet, but gpumem
// reserves its requested memory on the node against pods of lower precedence. When a reservation is released,
// the pod is nominated again if its nomination has not ended, and waits if it has.
//
// A reserved pod has GPUs of a node, from Reserve or Bind until the watch shows its binding. If the outcome
// of its binding is unknown, the pod keeps its GPUs until the binder reads the pod from the API server
// (Binder.ReviewAssumed).
//
// If the extender's filter returns only one node, or prioritize has one best node, the cache expects the pod
// there for three seconds. An expected pod affects only the choice of nodes and GPUs for other pods
// (cache.Expect).
//
// # Invariants
//
//   - One Decider serves all profiles of a process: two Deciders with two caches would allocate the same GPU
//     twice.
//   - Reserve, and Bind in the extender, pick and reserve the GPUs in one critical section. Unreserve keeps
//     the reservation while a binding may still succeed.
//   - Refuse evaluates the pods that kube-scheduler has on the node, because preemption removes and restores
//     pods there. It adds the pods whose bindings the watch has not shown. If kube-scheduler sees a
//     deletion before the cache does, Reserve and DeletionHelps remove the pod from the cache, after they
//     have checked in the informer's store that the pod is gone.
//   - gpumem evicts no pod for a pod that a node refuses only temporarily, or that fits a node outside
//     kube-scheduler's sample (MayEvict). After two seconds of temporary refusals, the refused pod precedes
//     the pods that caused them. Both rules apply for a minute at most.
//   - A pod that fits now is tried again. Either a queueing hint requeues it (DeletionHelps, ChangeHelps,
//     NodeHelps), or Wake does within about two seconds if the cache handles the event later than
//     kube-scheduler. This holds for nodes that refused the pod for lack of GPU memory, and for nodes outside
//     kube-scheduler's sample. Wake requeues a pod at most once after each refusal. After several vain
//     attempts, the pause between two attempts grows.
//
// # Decisions
//
// In kube-scheduler's process, the cache follows kube-scheduler's own informers. So there is one watch, and
// the page, the metrics and the self-check read the same nodes as Refuse. The alternative is to derive the
// state of a node from kube-scheduler's NodeInfo. But NodeInfo lacks a pod's GPUs until the watch shows the
// binding, and lacks bindings of unknown outcome, and the page and the metrics must not read NodeInfo. So the
// decider compares a node's NodeInfo with its cached state whenever either has changed. For an unchanged
// node, this costs two look-ups.
//
// kube-scheduler and the cache receive an event through two handlers of one informer, in either order.
// Without the comparison, a pod could be refused because of a deleted pod, and preemption would then evict
// pods from a second GPU.
package decider
