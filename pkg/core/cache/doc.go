// Package cache knows who holds what on every GPU of the cluster: what the API
// server says, and on top of it what the watch has not shown yet: placements
// that have been decided, and pods that a read has shown.
//
//	                AssumePod             AddPod (the watch: node and assignment)
//	  unknown ───────────────▶ assumed ───────────────▶ bound ──┐ AddPod
//	     ▲  ▲                   ││  ▲└─┐ Read.Enter      │  ▲──┘ (correction)
//	     │  └──── RefusePod ────┘│  └──┘ (a read next to │
//	     │        ForgetPod      │        the watch)     │ RemovePod
//	     │        ExpirePod      │                       │ (terminal or gone)
//	     └───────────────────────┴───────────────────────┘
//
//	AddPod from unknown → bound (a restart, another scheduler).
//	Read.Enter from unknown → assumed (another extender has bound it, and the
//	watch is behind).
//	RemovePod from unknown → nothing, and no read under way brings the pod back.
//
// A pod without a node may be nominated to one (NominatePod): others are leaving
// it to free memory. It holds nothing, and is counted against those who come after
// it until it is bound (AddPod), gone (RemovePod) or nominated to another node or
// to none.
//
// A pod about which kube-scheduler has just asked may be expected on a node (Expect): its
// Bind is to come. It reserves nothing. Expecting returns the nodes with their expected pods, so that
// the next pods are ranked beside these. Where AssumePod has a choice of GPUs, it leaves the
// others to expected pods.
//
// # Where to find what
//
// cache.go has what the cache hears and is asked of pods, read.go and expect.go the reads next to the
// watch and the pods that are expected. state.go is what it knows, under its lock. nodes.go,
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
