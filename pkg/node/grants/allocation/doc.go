// Package allocation implements the node's half of a placement with pure functions. It selects the slots that
// the kubelet should allocate to a container, interprets the slots that the kubelet took, and finds annotations
// that differ from the actual allocation. The documentation of package grants defines the terms listed,
// attributed, plan, account and earlier.
//
// # Protocol
//
// The kubelet requests an amount and names no pod. It admits pods one at a time, and the containers of a pod in
// the order of its spec. Its PodResources API lists existing allocations: sidecars and app containers by name,
// but no plain init containers. The API lists a pod from just before its admission, so the pod in question is
// usually the only listed pod that still lacks slots. The kubelet requests memory and cores of a container
// separately, in either order. The first allocation is listed when it requests the second. Slot IDs contain
// their GPU and their resource. Therefore:
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
// state.go describes the known state of the node. podstate.go sorts it by pod: the allocations, and the actual
// or planned GPUs of each pod. prefer.go, admit.go and reconcile.go decide on this basis. resolve.go interprets IDs.
//
// # Invariants
//
//   - A container's slots are on all of its pod's GPUs, with equal parts of memory and of cores.
//   - A wrong guess swaps interchangeable pods, because the scheduler lets no others wait here together. One
//     pod takes the other's GPU, and the other inherits its plan. So no GPU ever holds more than planned, and
//     Reconcile corrects the annotations. While only some of them are corrected, each of these pods counts on
//     both GPUs, so that no other pod gets memory that only seems free.
//   - A pod keeps the GPUs of its first allocation.
//   - Allocations do not depend on annotations. Once the node's inventory contains the result of Accounts, no
//     GPU counts for less than its allocations to admitted pods, whatever annotations the pods' owners write.
//
// # Decisions
//
// If Prefer returned too few IDs, the kubelet would add arbitrary ones, from any GPU. Prefer returns all IDs or
// an error.
//
// The kubelet can offer allocated slots. It waits for Allocate without holding its lock. If the kubelet
// meanwhile counts the free slots, because pods have ended and somebody calls PodResources, its records lack
// the slots in question. These slots stay on offer until the next count (kubernetes/kubernetes#137534).
// PodResources lists them correctly, so Prefer skips the listed slots, and Admit rejects them.
//
// Pods that no scheduler placed (a node name in the spec, another scheduler) are placed here by the same
// function. It respects the plans of pods that the kubelet has not admitted yet.
//
// For a pod that its owner sent to the node directly, package api ignores an assignment in the owner's
// annotations. The same rules then apply as to all pods: no cordoned GPU, no GPU that an exclusive neighbour
// will get, no memory planned for other pods, and no place at all if State.PlaceUnassigned is false. A pod that
// a Binding brought gets its annotated GPUs while their slots are free. This holds even if its GPU was
// cordoned, or a neighbour changed its policy, after the bind: later changes do not invalidate a correct bind.
//
// The number of GPUs that a pod requests is an annotation, which its owner can change. If the kubelet has
// allocated slots on a different number of GPUs, the assignment records that (placement.Assignment.Allocated)
// and overrides the annotation. The pod then has the amount in its spec, on those GPUs.
//
// # Limits
//
// The kubelet does not list a plain init container's allocation of one resource when it requests the other. A
// pod with both a plain init container and cores therefore uses the GPU in its annotation. If no scheduler has
// placed it, it uses the GPU of its init containers' recorded grants (State.Attributed), or the GPU that the
// same choice selects again. If the kubelet has not freed enough of that GPU yet, the pod is rejected.
//
// Pods that the kubelet could confuse with each other can wait together if they are on the same GPU. After a
// wrong guess, one of them may have to move to another GPU. The move does no harm while PodResources works.
// Otherwise the node rejects the next pod for which the kubelet calls Allocate.
//
// PodResources names pods without UID. Reconcile uses its entries for a pod only after the kubelet has
// confirmed (by the start time in the pod's status) that it has admitted this pod. Before that, they may belong
// to a force-deleted pod of the same name. If a pod is deleted in the second between a wrong guess and its
// correction, the scheduler's cache counts the wrong GPU as free for that long.
//
// PodResources lists nothing for a pod in which only plain init containers request memory. Such a pod is
// charged for its recorded grants (State.Attributed). Without grants, it is charged on the GPUs in its
// annotation, and without an annotation on each GPU.
//
// A Binding does not prove that the assignment came from the scheduler. A scheduler that knows only sums binds
// without an assignment, and then the owner's earlier annotation remains. The owner can also change it between
// the Binding and the admission. The API server's data does not distinguish these cases: it does not track who
// set a field by a Binding, and the owner can clear field ownership. Such a pod gets only free slots, and
// counts on its GPUs. But it may get a cordoned GPU, a GPU reserved for an exclusive pod, or memory planned for
// other pods, and it bypasses State.PlaceUnassigned. The chart's admission policies reject such annotations.
package allocation
