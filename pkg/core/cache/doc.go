// Package cache tracks GPU allocations of the whole cluster. It merges watched pods with reservations that
// the watch has not confirmed yet: the scheduler's decisions, and reads that were ahead of the watch.
//
// A pod that has memory of a node, or waits for memory, is in one of three states:
//
//	          NominatePod, QueuePod, Expect          AssumePod, Read.AddPod
//	unknown ───────────────────────▶ nominated ───────────────────────▶ reserved
//	   ▲ │                               │ ▲                               │  │
//	   │ │ AssumePod, Read.AddPod         │ └── RefusePod, ForgetPod, ──────┘  │
//	   │ └─────────────▶ reserved        │     ExpirePod                      │
//	   │                                 │ AddPod (the watch)                 │ AddPod
//	   │                                 ▼                                    ▼
//	   └────────── RemovePod ────────── bound ◀───────────────────────────────┘
//
// A nominated pod has no memory yet. It has at most one nomination, and can be expected as well:
//
//	reason                                              recorded by        ends
//	others leave the node for it (nominatedNodeName)    NominatePod        by NominatePod, or its pod
//	defrag has freed GPUs for it (a condition)          NominatePod        at the condition's time
//	it waits for the node to admit or place pods        QueuePod           after a time, or by QueuePod
//	kube-scheduler is about to bind it                  Expect             after ExpectationTTL, or by Unexpect
//
// A nomination has no effect while the pod is reserved, and a bound pod has none. Expire removes
// nominations that have ended. The first three reasons reserve memory against pods that the nominated pod
// precedes (Node.Nominated, package decide). The fourth reason makes no node refuse a pod: it only steers
// other pods to other GPUs (Node.Expected), and gives way to the first three.
//
// A reserved pod has its GPUs. Its record is an assumption (Pod.Assumed). Its binding is yet to be sent
// (HoldPod), in progress, or of unknown outcome, or a read has shown the pod before the watch. RefusePod
// ends the reservation of one binding. AssumedBefore returns old reservations to the caller, which reads the
// pods and calls Read.AddPod or ExpirePod. A pod is bound once the watch has shown it on its node: AddPod
// then replaces its record. RemovePod ends every state.
//
// The cache does not contain kube-scheduler's own assumed pods: package decider compares them with the
// cache.
//
// cache.go has the methods for pods and nodes, expect.go Expect, and read.go the reads next to the watch.
// state.go has the records under the lock. nodes.go and answers.go serve readers of nodes without the lock.
// changed.go returns the changed nodes; of its methods, only Since, ChangedSince and Changes take the lock.
// compare.go finds and repairs differences. The prices of nodes are in ranking.Market.
//
// # Invariants
//
//   - On each GPU, the allocated memory is at most the offered memory, unless the GPU shrank or the API
//     server has more pods there.
//   - The state does not depend on the order in which API objects and assumed pods were added.
//   - Expected pods affect only questions with Question.Expecting, and no binding is refused because of
//     an expected pod. An expectation ends when the pod is bound or gone, or after ExpectationTTL.
//   - One critical section picks the GPUs and reserves them. No I/O and no callback happens under the
//     lock.
//
// # Assumptions
//
//   - Events about pods and nodes may be late or duplicated, and a pod may precede its node. Each call has
//     the whole state of its object, so the last one counts.
//   - Events of one watch are ordered. Events of different watches are not.
//   - A pod's UID is never reused.
//
// # Decisions
//
// A deleted node with pods remains as a ghost, hidden from readers. If a node of that name is added again,
// it gets these pods.
//
// Readers take no lock, except the first reader after a node was added or removed: it rebuilds the map of
// nodes. Each node's state is an immutable value behind an atomic pointer and is rebuilt on each change,
// so reading 5,000 nodes does not delay a binding. There is no consistent view of several nodes: a
// placement concerns one node and is checked again when it is reserved. Decisions are stored with the
// state of their node, so only changed nodes are evaluated again.
//
// Assumptions have no timeout in the cache. The caller reads old assumed pods from the API server, because
// only the API server knows the outcome of a binding if its response was lost. A pod's record lists
// each binding, because the refusal of a later one does not determine the outcome of an earlier one. A
// binding is repeated only while its reservation still fits: another process may have bound pods to those
// GPUs. A pod that only a read has shown is read again until the watch shows it: if the pod is deleted
// before a broken watch resumes, the watch never reports the pod.
//
// Package decide decides whether a pod can go to a node, both for readers and for reservations.
package cache
