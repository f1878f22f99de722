// Package grants records the part of each GPU that each container of a node has. A Table contains the grants,
// which are the answers to the kubelet's Allocate calls. Everything else that the node agent reports about a
// container follows from its grant: GPUs, limit, level, environment, account, usage. A State joins the table
// with the watched pods and the kubelet's list. A Reconciler is the only writer of pod annotations on the node.
// Package allocation contains the rules, as pure functions of a State.
//
// # Lifecycle of a grant
//
//	(none) ──the scheduler's Binding writes the annotation──▶ planned
//	   │                                                         │ GetPreferredAllocation: allocation.Prefer
//	   │ no scheduler placed the pod                             │ offers slots of the planned GPU
//	   ▼                                                         ▼
//	allocation.Prefer chooses a GPU ──────────▶ Allocate: allocation.Resolve reads the slots,
//	                                            allocation.Admit guesses the container, Put records, the kubelet is answered
//	                                                             ▼
//	                                                        ATTRIBUTED   slots, GPUs and response are certain,
//	                                                         │       │   pod and container are a guess
//	                PodResources lists the slots at this pod │       │ at another pod: Adopt moves the grant
//	                                                         ▼       ▼
//	listed, without a grant (0.2, lost file) ──Adopt──▶ CONFIRMED
//	                                                         │ the annotations differ: Reconciler writes them
//	                                                         ▼
//	                                                      WRITTEN ──the owner edits an annotation──▶ CONFIRMED
//	ENDED: Put records a grant of its slots to another container (a later container may share an init container's slots); or
//	       Put records a new grant of the same container, and the kubelet no longer lists the old one; or
//	       Keep: a complete list of pods, newer than the grant, lacks the pod, and the kubelet does not list its slots.
//
// The kubelet does not list plain init containers. A later container of the pod that reuses their slots
// confirms their grants. Otherwise the container runtime confirms them at the container's start (NRI), because
// it passes the kubelet's stored response (Attribute). On a node without NRI, these grants stay ATTRIBUTED. A
// container that restarts gets the recorded response, even if settings have changed. PreStartContainer and the
// Reconciler's loop find differences from the annotations.
//
// # Protocol
//
// The device plugin records a grant (Put) before it answers the kubelet, and the kubelet uses the same answer
// at each start of the container. A new process reads the checkpoint (Load) once no other process serves GPU
// memory to the kubelet, because the serving process writes it. A table writes nothing before Load, and nothing
// after GiveWay. Before Load, it contains the grants in the checkpoint at the start of the process, for early
// readers. If the checkpoint stays unreadable for about 30 seconds, it is set aside. A file of levels next to
// the checkpoint indicates a rollback to version 0.2: the slots in it have ended the checkpoint's grants.
//
// Look retries for a while if the kubelet does not answer. Then the kubelet's last answer and later grants
// count. Ask tries once and can fail. Adopt creates grants for listed containers without one. These have no
// response: it is rebuilt from the environment that the kubelet stored. The next process creates them again.
//
// Reconciler computes the annotations of a pod (wanted) and writes them (write): its level, its indexes, and
// its GPUs. After the kubelet has allocated a pod's GPUs to another pod, it writes the replacement
// (allocation.Reconcile). It runs before a container starts, after each allocation, when pods change, and every
// minute. While an annotation understates a grant, the node's inventory also contains the grant (Allocations),
// which the pod's owner cannot change. That entry lasts as long as the pod, because its owner could understate
// the grant again. A new process reads the entries from the node's annotation.
//
// # Invariants
//
//   - A slot belongs to its last grant. Only init containers share slots with later containers of their pod,
//     because the kubelet gives them the same ones.
//   - A listed grant ends only when another container gets its slots.
//   - The kubelet's call names no pod. So Find compares slots, and uses the container's name only between
//     containers with the same slots.
//   - Pods are read before the kubelet's list (for the reason, see allocation.Reconcile).
//   - The table's length is bounded by the slots of the node and the init containers of its pods.
//   - The recorded level of a container counts. The annotation, which the Binding wrote, counts only if none is
//     recorded.
//   - Only one call at a time writes a pod. A second call leaves the write to the loop.
//   - Annotations are computed from the pod's current state in the watch, not from its state at the time of the
//     kubelet's answer.
//   - Waiting pods are written before pods with slots. If the write of a waiting pod fails, no pod that is
//     interchangeable with it is written: the waiting pod's loss can be computed only while the others still
//     have the old annotation.
//   - No call is made while a lock is held.
//
// # Decisions
//
// Offers contains the inventory for the kubelet and for schedulers. If the list exceeds the kubelet's message
// limit, Offers does not send it, because the kubelet would drop it silently. The node then offers nothing, and
// the reason contains a unit that fits. The list contains no NUMA topology: the kubelet would select aligned
// IDs before it reads the preference, and only the preference makes IDs and assignment agree.
package grants
