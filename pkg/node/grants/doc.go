// Package grants records the part of each GPU that each container of a node has. A Table contains the grants,
// which are the answers to the kubelet's Allocate calls. Everything else that the node agent reports about a
// container follows from its grant: GPUs, limit, level, environment, account, usage. A State joins the table
// with the watched pods and the kubelet's list. A Reconciler is the only writer of pod annotations on the node.
// Package allocation contains the rules, as pure functions of a State.
//
// # Lifecycle of a grant
//
// Capitals mark the states of a grant. In the states in lower case, there is no grant yet.
//
//	(none) ──the scheduler's Binding writes the annotation──▶ planned
//	   │                                                         │ GetPreferredAllocation: allocation.Prefer
//	   │ no scheduler placed the pod                             │ offers slots of the planned GPU
//	   ▼                                                         ▼
//	allocation.Prefer chooses a GPU ──────────▶ Allocate: allocation.Resolve reads the slots, allocation.Admit
//	   ┌─────────────────────────────────────── guesses the container, Put records, the kubelet is answered
//	   ▼
//	ATTRIBUTED   slots, GPUs and response are certain, pod and container are a guess
//	   │ PodResources lists the slots at this pod; or
//	   │ PodResources lists the slots at another pod: Adopt moves the grant there; or
//	   │ a plain init container starts, and the runtime passes its response (NRI): Attribute moves the grant; or
//	   │ a later container of the pod reuses the slots of a plain init container
//	   ▼
//	CONFIRMED ◀──Adopt── listed, without a grant (from version 0.2, or after the loss of the checkpoint)
//	   │      ◀────────────────────────────────────────────────────┐
//	   │ the annotations differ: Reconciler writes them            │ the owner edits an annotation
//	   ▼                                                           │
//	WRITTEN ───────────────────────────────────────────────────────┘
//
// A grant ends (ENDED) when
//
//   - Put records its slots for another container. An init container's slots are an exception: a later container
//     of the same pod may get them too, and the grant stays.
//   - Put records a new grant of the same container, and the kubelet no longer lists the old one.
//   - a complete list of pods, read after the grant was recorded, lacks the pod, and the kubelet does not list
//     the grant's slots (Keep).
//
// The kubelet never lists plain init containers. A grant of such a container stays ATTRIBUTED if the node has no
// NRI and no later container of the pod reuses its slots. A container that restarts gets the recorded response,
// even if settings have changed. PreStartContainer and the Reconciler's loop compare the annotations with the
// grants.
//
// # Protocol
//
// The device plugin records a grant (Put) before it answers the kubelet, and the kubelet uses the same answer
// at each start of the container. A new process reads the checkpoint (Load) once no other process serves GPU
// memory to the kubelet, because the serving process writes it. A table writes nothing before Load, and nothing
// after GiveWay. It reads the checkpoint a first time when the process starts, for callers that need grants
// before Load. If the checkpoint stays unreadable for about 30 seconds, it is set aside. A file of levels next
// to the checkpoint indicates a rollback to version 0.2, which has allocated the slots in that file again. The
// checkpoint's grants of these slots have ended.
//
// If the kubelet does not answer, Look retries for up to Config.KubeletWait, and then combines the kubelet's
// last list with later grants. Ask tries once, and returns the error. Adopt creates grants for listed containers
// without one. These grants have no response. If a response is needed, package containers rebuilds it, with the
// settings in the environment that the kubelet has stored for the container. Load drops grants without a
// response, and the new process adopts their containers again.
//
// Reconciler computes the annotations of a pod (wanted) and writes them (write): its level, its indexes, and
// its GPUs. If the kubelet has allocated the GPUs of a waiting pod to another pod, Reconciler writes the plan
// that the waiting pod inherits (allocation.Reconcile). It runs before a container starts, after each
// allocation, when pods change, and every minute. While an annotation understates a grant, the node's inventory
// also contains the grant (Allocations), which the pod's owner cannot change. That entry lasts as long as the
// pod, because its owner could understate the grant again. A new process reads the entries from the node's
// annotation.
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
