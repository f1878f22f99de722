// Package grants records which container of a node has which part of which GPU. A Table has the grants: the answers to the
// kubelet's Allocate calls. Everything else that the node agent reports of a container follows from its grant: GPUs,
// limit, level, environment, account, use. A State joins the table with the watched pods and the kubelet's list. A Reconciler
// is the only writer of pod annotations on the node. Package allocation has the rules: pure functions of a State.
//
// # The life of one container's grant
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
//	ENDED: Put gives its slots to another container, but a later container of the pod shares the slots of an init container; or
//	       Put has a new grant of the same container, and the kubelet does not list the old one any more; or
//	       Keep: the pod is absent from a complete list that is newer than the grant, and the kubelet does not list its slots.
//
// The kubelet does not list plain init containers. A later container of the pod that reuses their slots confirms their grants.
// Otherwise the container runtime does at the start (NRI): it has the kubelet's stored response (Attribute). A node without NRI
// leaves these grants ATTRIBUTED. A container that restarts gets the recorded response, whatever the settings are by then. PreStartContainer and the loop of the Reconciler find differences to annotations.
//
// # Protocol
//
// The device plugin records a grant (Put) before it answers the kubelet, and the kubelet uses the same answer at each start of the
// container. A new process reads the checkpoint (Load) once no other process serves GPU memory to the kubelet: until then that
// process writes it. A table that was not loaded, or that gave way to another process since (GiveWay), writes nothing. Before
// Load it has the grants that the checkpoint had at the start of the process, for readers that begin earlier. A checkpoint that
// cannot be read for about 30 seconds is set aside. A file of levels beside the checkpoint shows a rollback to version 0.2: its
// slots have ended the grants of the checkpoint.
//
// Look lists the kubelet's containers again for a while if the kubelet does not answer. Then its last answer counts, and
// later grants. Ask asks once and can fail. Adopt makes grants for listed containers that have none. These have no response:
// it is rebuilt from the environment that the kubelet stored. The next process makes them again.
//
// Reconciler computes the annotations of a pod (wanted) and writes them (write): its GPUs, or those that it gets since the
// kubelet gave its own to another pod (allocation.Reconcile), its level, and the indexes. It runs before a
// container starts, after each allocation, when pods change, and every minute. While an annotation understates a
// grant, the node's inventory has the grant too (Allocations), which the pod's owner cannot write. That entry ends with the pod:
// its owner could understate the grant again. A new process takes the entries over from the node's annotation.
//
// # Invariants
//
//   - A slot belongs to the last grant that has it. Only init containers share slots with later containers of
//     their pod, as the kubelet gives them the same ones.
//   - A grant that the kubelet lists ends only when another container gets its slots.
//   - The kubelet's call names no pod. Find therefore goes by slots, and the name of the container decides only between
//     containers with the same slots.
//   - Pods are read before the kubelet is asked (allocation.Reconcile has the reason).
//   - The table is never longer than the slots of the node and the init containers of its pods.
//   - The level of a container is the recorded one. The annotation, which the Binding wrote, counts only if none is recorded.
//   - One call at a time writes a pod. A second leaves it to the loop.
//   - Annotations are computed from the pod as the watch has it at that moment, not from the time of the kubelet's answer.
//   - Waiting pods are written before pods that have slots. If a waiting pod could not be written, no pod that is
//     interchangeable with it is: its loss can be computed only while the others still have the old annotation.
//   - No call is made under a lock.
//
// # Decisions
//
// Offers has the inventory as the kubelet and schedulers get it. A list that is larger than the
// kubelet's limit for a message is not sent: the kubelet would drop it without a report. The node then offers
// nothing and names the unit that fits. The list carries no NUMA topology: the kubelet takes aligned IDs before it looks
// at the preference, and the preference is what makes IDs and assignment agree.
package grants
