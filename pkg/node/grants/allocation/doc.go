// Package allocation implements the node's half of a placement with pure functions. It selects the slots that
// the kubelet should allocate to a container, interprets the slots that the kubelet took, and finds annotations
// that differ from the kubelet's allocations. The documentation of package grants defines the terms listed,
// attributed, waiting, plan, account, earlier and interchangeable.
//
// # Protocol
//
// The kubelet requests an amount and names no pod. It admits pods one at a time, and the containers of a pod in
// the order of its spec. Its PodResources API lists existing allocations: sidecars and app containers by name,
// but no plain init containers. The API lists a pod from just before its admission, so the pod in question is
// usually the only listed pod that still lacks slots. The kubelet requests memory and cores of a container
// separately, in either order. When the kubelet requests the second resource, PodResources lists the allocation
// of the first. Slot IDs contain their GPU and their resource. Therefore:
//
//   - Prefer guesses the waiting pod for which the kubelet calls, from the amount and from each pod's existing
//     allocations, and returns IDs of that pod's GPU.
//   - Resolve interprets the IDs that the kubelet took. The kubelet accounts for these IDs, so they are the
//     container's allocation, whatever Prefer guessed.
//   - Reconcile compares pods' allocations with their annotations, and returns the necessary corrections.
//     Accounts returns the pods whose annotations show less than their allocations, for the node's inventory.
//
// # Files
//
// state.go describes the known state of the node. podstate.go groups it by pod: the allocations, and the actual
// or planned GPUs of each pod. prefer.go, admit.go and reconcile.go contain the decisions. resolve.go
// interprets IDs.
//
// # Invariants
//
//   - A container's slots are on all of its pod's GPUs, with equal parts of memory and of cores.
//   - A wrong guess swaps interchangeable pods: one pod gets the other pod's GPU, and the other pod inherits the first
//     pod's plan. The scheduler does not let pods that are confusable (placement.Request.Confusable) but not
//     interchangeable wait on one node together (for an exception, see Limits). So no GPU ever has more allocations
//     than planned, and Reconcile corrects the annotations. Until all of them are corrected, each of these pods counts
//     on both GPUs: its amount is free on neither, so that no other pod gets memory that only seems free.
//   - A pod keeps the GPUs of its first allocation.
//   - Allocations do not depend on annotations. Once the node's inventory contains the result of Accounts,
//     schedulers count at least the allocations to admitted pods on each GPU, whatever annotations the pods'
//     owners write.
//
// # Decisions
//
// If Prefer returned too few IDs, the kubelet would add arbitrary IDs, from any GPU. Therefore Prefer returns
// all IDs or an error.
//
// The kubelet can offer allocated slots as available ones. It does not hold its lock while it waits for Allocate. If
// it recounts the allocated slots during this wait (because pods have ended and a client calls PodResources), the
// recount lacks the slots of the pending call. The kubelet offers these slots until its next recount
// (kubernetes/kubernetes#137534). PodResources lists them correctly, so Prefer skips listed slots, and Admit rejects
// them.
//
// For pods that no scheduler placed (a node name in the spec, another scheduler), Prefer chooses GPUs with the
// scheduler's function, placement.Choose. It respects the plans of pods that the kubelet has not admitted yet.
//
// For a pod that its owner sent to the node directly, package api ignores an assignment in the owner's
// annotations. Such a pod follows the rules for pods without an assignment: it gets no cordoned GPU, no GPU
// planned for an exclusive pod, no memory planned for other pods, and nothing if State.PlaceUnassigned is
// false. A pod with a Binding gets its annotated GPUs while their slots are free. This holds even if an
// administrator cordoned the GPU, or another pod on it changed its policy, after the Binding: later changes do
// not invalidate a correct Binding.
//
// The number of GPUs that a pod requests is an annotation, which its owner can change. If the kubelet has
// allocated slots on a different number of GPUs, the assignment has the GPUs of these slots, is marked
// (placement.Assignment.Allocated), and overrides that annotation. The pod then has the amount in its spec, on
// those GPUs.
//
// # Limits
//
// The kubelet does not list a plain init container's allocation of one resource when it requests the other. A
// pod with both a plain init container and cores therefore uses the GPU in its annotation. If no scheduler has
// placed the pod, it uses the GPU of its init containers' recorded grants (State.Attributed) or, without such
// grants, the GPU that placement.Choose selects again. If the kubelet has not freed enough of that GPU yet,
// Prefer returns an error.
//
// Confusable pods that are not interchangeable can wait together if they are assigned to the same GPU. After a
// wrong guess, one of them may have to move to another GPU. The move does no harm while PodResources works.
// Otherwise the node rejects the next pod for which the kubelet calls Allocate.
//
// PodResources names pods without UID. Reconcile uses its entries for a pod only after the kubelet has
// confirmed (by the start time in the pod's status) that it has admitted this pod. Before that, they may belong
// to a force-deleted pod of the same name. If a pod is deleted after a wrong guess and before its correction
// (about a second), the scheduler's cache counts the wrong GPU as free until the correction.
//
// PodResources lists nothing for a pod in which only plain init containers request memory. Such a pod counts on
// the GPUs of its recorded grants (State.Attributed), without grants on the GPUs in its annotation, and without
// an annotation on each GPU.
//
// A Binding does not prove that the assignment came from the scheduler. A scheduler that counts only the node's
// total binds without an assignment, and an annotation that the owner wrote before remains. The owner can also
// change the annotation between the Binding and the admission. The API server's data does not distinguish these
// cases: it does not track who set a field by a Binding, and the owner can clear field ownership. A pod with
// such an annotation gets only free slots, and counts on the annotated GPUs. But it may get a cordoned GPU, a
// GPU reserved for an exclusive pod, or memory planned for other pods, and it bypasses State.PlaceUnassigned.
// The chart's admission policies reject such annotations.
package allocation
