// Package cache tracks the GPU memory that pods have on every node of the cluster. It merges what the
// watch has shown with placements that the scheduler has decided and reads that were ahead of the watch.
//
// A pod has memory of a node, or will have it, in one of three states:
//
//	          NominatePod, QueuePod, Expect          AssumePod, Read.Enter
//	unknown ───────────────────────▶ nominated ───────────────────────▶ reserved
//	   ▲ │                               │ ▲                               │  │
//	   │ │ AssumePod, Read.Enter         │ └── RefusePod, ForgetPod, ──────┘  │
//	   │ └─────────────▶ reserved        │     ExpirePod                      │
//	   │                                 │ AddPod (the watch)                 │ AddPod
//	   │                                 ▼                                    ▼
//	   └────────── RemovePod ────────── bound ◀───────────────────────────────┘
//
// A nominated pod has nothing yet. It has one nomination at most, and can be expected as well:
//
//	reason                                              recorded by        ends
//	others leave the node for it (status.nominatedNode) NominatePod        by NominatePod, or its pod
//	defrag has freed GPUs for it (a condition)          NominatePod        at the condition's time
//	it waits for the node to admit or place pods        QueuePod           after a time, or by QueuePod
//	kube-scheduler is about to bind it                  Expect             after a Moment, or by Unexpect
//
// A nomination does not count while the pod is reserved, and a bound pod has none. Expire ends each
// nomination whose time has passed. The first three reasons reserve memory against pods that come after the
// pod (Node.Nominated, package decide). The last one refuses no pod: it only steers others to other
// GPUs (Node.Expected), and gives way to the first three.
//
// A reserved pod (Pod.Assumed) has its GPUs. Its binding is still to be sent (HoldPod), under way, of an unknown
// outcome, or a read has shown it before the watch. RefusePod ends the reservation of one binding.
// AssumedBefore returns old reservations to the caller, which reads the pods and calls Read.Enter or
// ExpirePod. A bound pod is one that the watch has shown. AddPod corrects it, and RemovePod ends each state.
//
// kube-scheduler's own assumed pods are no record here: package decider compares them with the cache.
//
// # Where to find what
//
// cache.go has what the cache hears and is asked of pods, read.go and expect.go the reads next to the
// watch and Expect. state.go is what it knows, under its lock. nodes.go,
// answers.go and changed.go are for those who read nodes, without that lock. compare.go finds and
// repairs what is wrong. What nodes are worth to pods to come is kept by a ranking.Market.
//
// # Invariants
//
//   - Per GPU, what pods hold is at most what the GPU offers, unless the GPU
//     shrank or the API server says that it is more.
//   - The cache is what comes out when the API objects and the assumed pods are
//     put together from scratch, in any order.
//   - What is expected changes no answer to a question that does not ask for it, and
//     no binding is refused for it. It ends with the pod's Bind, the pod, or a Moment.
//   - Choosing a GPU and reserving it is one critical section. Nothing else
//     happens under the lock: no I/O, no call to the outside.
//
// # Assumptions
//
//   - Events about pods and nodes may come late, twice, or pods before their
//     node. Each call carries the whole state of its object, so the last counts.
//   - The watch of one object is ordered; watches of two objects are not.
//   - A pod's UID never changes and is never used again.
//
// # Decisions
//
// A deleted node with pods left is kept as a ghost, hidden from readers: its pods
// may be heard of again before it is, and a node that comes back under its name
// finds them.
//
// Readers take no lock, but for one that comes after a node was added or removed:
// it makes the map of nodes again. Each node's state is an immutable value behind an
// atomic pointer, remade when something on that node changes; reading 5,000
// nodes does not hold up a binding. Nodes are not frozen together: a placement
// concerns one node, and it is checked again when it is reserved. What was
// answered about a node is kept with its state and goes with it, so that of
// 5,000 nodes only those that have changed are looked at again.
//
// An assumed pod has no time limit of its own in here. What has been assumed
// for too long is handed to the caller, which asks the API server and then
// enters the pod or calls ExpirePod: only the API server knows the outcome of a binding
// whose answer was lost. That a later binding of the same pod was refused says
// nothing of such an earlier one, so bindings are counted. A binding is repeated
// only while what it reserved is still there: another extender may have bound
// others to those GPUs. One that a read has shown to be bound is read again in
// its turn until the watch tells of it: a watch that was broken never tells of a
// pod that has come and gone meanwhile.
//
// Whether a pod may go to a node is asked of package decide, by readers as when it
// is reserved.
package cache
