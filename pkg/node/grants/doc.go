// Package grants records the GPU memory and GPU cores of each container on a node. A Table contains the grants. Each
// Grant records one answer of the device plugin to the kubelet's Allocate call. A container's GPUs, limit, enforcement
// level, environment and account follow from its grant, and its usage is compared with it. A State joins the table
// with the watched pods and the kubelet's PodResources list. On the node, only a Reconciler writes the annotations of
// pods' assignments (package usage writes gpu-memory-used). Package allocation contains the rules, as pure functions of
// a State.
//
// # Terms
//
//   - listed: present in the last answer of the kubelet's PodResources API (a pod, a container or a slot, which
//     is one device ID: see package gpu).
//   - waiting: bound to the node, and without slots yet (a pod).
//   - attributed: a grant is attributed to the container for which the kubelet most likely called. The slots
//     are certain. The container is a guess until the kubelet lists the slots.
//   - plan: the assignment that a pod should have. Until the kubelet admits the pod, this is its annotation.
//     Afterwards, it is the annotation at the admission, or the node's last correction since then. Plans are in
//     memory only: for a pod that was admitted before the process started, the plan is the annotation that the
//     process reads first, although the owner may have edited it.
//   - swap: the kubelet allocates the planned GPU of a waiting pod to an interchangeable pod.
//   - account: the memory and the cores that the kubelet has allocated to a pod, by GPU. The node publishes a
//     pod's account if the pod's annotations have ever shown less than the account.
//   - former level: the enforcement level and the MPS protocol that version 0.2 recorded for a slot, in its own file.
//   - holding: the GPU memory of one pod or one container. In package placement, a holding is a pod with its
//     request and its assignment. In package render, it is a container's grants with their GPUs and level.
//   - earlier: recorded before the plugin last registered with the kubelet. The kubelet may have lost such a
//     grant.
//   - interchangeable: two pods are interchangeable if the kubelet's calls for them are equal, and each fits
//     wherever the other fits (placement.Request.Interchangeable).
//
// # Lifecycle of a grant
//
// Capitals mark the states of a grant. They follow from the table, the kubelet's list and the annotations, and are not
// stored. In the states in lower case, there is no grant yet.
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
//	   │ a plain init container starts, and NRI shows the response that it got: Attribute moves the grant; or
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
//   - Put records a new grant with any of its slots. An init container's slots are an exception: a later container
//     of the same pod may get them too, and the grant stays.
//   - Put records a new grant of the same container and resource, and the old grant is earlier and not listed.
//   - a complete list of pods, read after the grant was recorded, lacks the pod, and the kubelet does not list
//     the grant's first slot (Prune). A grant without a UID ends even if the list has its pod, but not before two
//     successful calls of SnapshotOnce have followed it.
//   - Load drops it: see Protocol.
//
// The kubelet never lists plain init containers. A grant of such a container stays ATTRIBUTED if the node has no NRI
// and no later container of the pod reuses its slots. A grant outlives its container: a container that restarts gets
// the recorded response, even if settings have changed. A grant becomes WRITTEN in PreStartContainer or in the
// Reconciler's loop, which compare the annotations with the grants.
//
// # Protocol
//
// The device plugin records a grant (Put) before it answers the kubelet, and the kubelet uses the same answer at each
// start of the container. Put also writes the checkpoint, the file gpumem-grants.json. If this write fails, the device
// plugin answers nevertheless, and Prune repeats the write. A new process reads the checkpoint (Load) once no other
// process serves GPU memory to the kubelet, because the serving process writes the checkpoint. A table writes nothing
// before Load, and nothing after GiveWay. It reads the checkpoint a first time when the process starts, for callers
// that need grants before Load. If the checkpoint stays unreadable for about 30 seconds, Load sets it aside. If a file
// of former levels lies next to the checkpoint, version 0.2 has run since the last write of the checkpoint (a
// rollback). Version 0.2 has then allocated the slots in that file. The table then drops the checkpoint's grants of
// these slots.
//
// If the kubelet does not answer, Snapshot retries for up to Config.KubeletWait, and then combines the kubelet's last
// list with later grants. SnapshotOnce tries once, and returns the error. Adopt creates grants for listed containers
// without one. These grants have no response. Package render rebuilds a missing response with the settings in the
// container's environment, which the kubelet has stored. Load drops grants without a response, and the new process
// adopts their containers again.
//
// Reconciler computes the annotations of a pod (desiredAssignment) and writes them (write): enforcement level,
// GPU indexes, and GPUs. After a swap, the waiting pod inherits the other pod's plan (allocation.Reconcile), and
// Reconciler writes this plan. Reconciler runs before a container starts, after each allocation, when pods or the
// inventory change, every minute, and one second to one minute after a failure. If an annotation shows less
// than the pod's account, the node also publishes the account in its inventory (Allocations), which the pod's
// owner cannot change. The entry stays as long as the pod, because the owner could change the annotation again.
// A new process reads the entries from the node's annotation.
//
// # Invariants
//
//   - A slot belongs to its last grant. Only init containers share slots with later containers of their pod,
//     because the kubelet reuses the slots for the later containers.
//   - While the kubelet lists all slots of a grant, Put and Prune end it only when a new grant gets one of the slots.
//   - The kubelet's call names no pod. So Find compares slots. It compares containers' names only to choose
//     between grants of the same slots.
//   - State reads the pods before the kubelet's list (for the reason, see allocation.Reconcile).
//   - The table's length is bounded by the slots of the node and the init containers of its pods.
//   - The recorded level of a container overrides the level in the annotation, which the Binding wrote.
//   - Reconciler writes the annotations of one pod at a time. The next write waits up to Config.WriteWait.
//   - Reconciler computes annotations from the pod's current state in the watch, not from the state at the time
//     of the kubelet's answer.
//   - Reconciler writes waiting pods before pods with slots. If the write of a waiting pod fails, Reconciler
//     writes no interchangeable pod: it can compute the waiting pod's new plan only while the other pods have
//     their old annotations.
//   - The package holds no lock during a call to the kubelet or to the API server.
//
// # Example: an answer of the kubelet that is older than a grant
//
// The kubelet can list slots at pod A after it has allocated them to pod B:
//
//  1. Snapshot counts the grants (5) and calls PodResources.
//  2. The kubelet lists slot s at pod A, which has just ended. The answer is still on its way.
//  3. The kubelet frees slot s, and calls Allocate with slot s for pod B.
//  4. Put ends the grant of pod A and records grant 6 of slot s, attributed to pod B.
//  5. Snapshot receives the answer of step 2 and calls Adopt with count 5. Grant 6 has a higher number. So Adopt does
//     not move it to pod A, and creates no grant for pod A.
//  6. The next answer lists slot s at pod B, and confirms grant 6.
//
// # Decisions
//
// Offers contains the inventory for the kubelet and for schedulers. If the device list exceeds the kubelet's
// message limit, Offers contains no devices, because the kubelet would drop the list silently. The reason
// (Offer.Reason) then names a unit with which the list fits. The list contains no NUMA topology: the kubelet
// would select aligned IDs before it asks the plugin for preferred IDs, and only preferred IDs belong to the
// assigned GPU.
package grants
