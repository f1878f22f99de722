// Package allocation is the node's half of a placement: which slots the kubelet
// should take for the container it is asking about, what the slots that it took
// mean, and where annotations differ from what it really did.
//
// # Protocol
//
// The kubelet asks for an amount and names no pod. It admits pods one at a
// time, and the containers of a pod in the order of its spec; what has been
// given already is listed by its PodResources API, sidecars and app containers by
// name, plain init containers not at all. That API lists a pod from the moment
// before its admission, so the pod in question is as a rule the only one on the
// list that lacks something. Memory and cores of a container are asked for one
// after the other, in either order, and the first shows on the list when the
// second is asked for. Slot IDs name their GPU and their resource. So:
//
//   - Prefer guesses for which waiting pod the kubelet asks, from the amount and
//     from what each pod has got already, and answers with IDs of that pod's GPU.
//   - Resolve reads the IDs that the kubelet took. They are what it accounts,
//     hence what the container gets, whatever was guessed before.
//   - Reconcile compares what pods hold with what is written of them, and says
//     what to write. Accounts says which pods count for less by what is written than
//     they were given: that is for the node's inventory.
//
// # Where to find what
//
// state.go has what is known of the node, podstate.go sorts it by pod: who holds
// what, and where each pod is or is to be. On that prefer.go, admit.go and
// reconcile.go answer. resolve.go reads IDs.
//
// # Invariants
//
//   - A container's slots are all of its pod's GPUs, in equal parts, of memory
//     and of cores.
//   - A wrong guess exchanges pods that are interchangeable (the scheduler side
//     lets no others wait here together): the one takes the other's GPU, and the
//     other has its plan from then on. So no GPU ever holds more than was
//     planned, and Reconcile puts the names right. While some of them are
//     written and others not, each is charged with both GPUs: no pod can get
//     what seems to be free in between.
//   - A pod that has been given anything keeps those GPUs.
//   - What pods were given does not depend on what is written of them. Once the node's
//     inventory has what Accounts says, no GPU counts for less than it has given to pods
//     that the kubelet has admitted, whatever their owners write.
//
// # Decisions
//
// A preference that is too short would be filled up by the kubelet at random,
// from any GPU. Prefer answers in full or with an error.
//
// What the kubelet offers may be taken already. It waits for Allocate without its
// lock, and when it counts what is free meanwhile, because pods have ended and
// somebody asks PodResources, the slots in question are in none of its records:
// they stay on offer until it counts again (kubernetes/kubernetes#137534). Its
// PodResources API tells the truth, so Prefer leaves out what that names, and
// Admit refuses it.
//
// Pods that no scheduler placed (a node name in the spec, another scheduler)
// are placed here, by the same function, next to what is planned for pods
// that the kubelet has not admitted yet.
//
// Of such a pod that its owner sent to the node, package api leaves out what the owner wrote of
// where it is to be, so it is judged like the others: no GPU that is cordoned, none
// that a neighbour is to have alone, none that is planned for another, and no place at all
// where State.PlaceUnassigned is false. A pod that a Binding brought has its written GPUs
// as long as their slots are free, also where its GPU was cordoned, or a neighbour changed
// its policy, after it was bound: a pod that was bound rightly is not refused for what came
// later.
//
// How many GPUs a pod asks for is an annotation, which its owner can change. Where the kubelet
// has given slots of another number of GPUs, what is written says so (placement.Assignment.Allocated)
// and stands above the annotation. The pod has then what it was given: as much as
// its spec asks for, over those GPUs.
//
// # Limits
//
// What a plain init container has got of the one resource does not show when the
// kubelet asks for the other. The GPU of a pod that has both a plain init
// container and cores is therefore the one that is written of it, or, of a pod that
// no scheduler has placed, the one of the recorded grants of its init containers
// (State.Attributed), or where the same choice leads again; when the kubelet
// has not freed enough of that one yet, the pod is refused.
//
// Pods that the kubelet could take for one another, and that wait together because
// they are on the same GPU, come apart when one of them has to leave it after a
// wrong guess. Where the kubelet can be asked whom it lists, that does no harm; where
// it cannot, the one that it asks for next is refused.
//
// PodResources names pods without their UID. What it lists of a pod is written
// down once the kubelet has said (by the start time in the pod's status) that it
// has admitted this one: until then it may be of another that was deleted by
// force and had the name before. A pod that is deleted in the second between a
// wrong guess and its correction frees the wrong GPU in the cache for as long.
//
// PodResources tells nothing of a pod whose plain init containers alone ask for
// memory. Such a pod counts by its recorded grants (State.Attributed), and without these by its annotation. Where neither is known it
// counts on each GPU.
//
// That a Binding brought a pod does not say that the Binding had the assignment: a scheduler that
// knows sums alone binds without one, and then what the pod's owner wrote before stands, as
// does what the owner writes between the Binding and the admission. Nothing that
// the API server keeps tells these apart: it does not track who set a field by a Binding, and
// who owns a field is the owner's to clear. Such a pod gets only slots that are free, and
// counts where it is; but it may come to a GPU that is cordoned or that another is to have
// alone, take what was planned for another, and pass where State.PlaceUnassigned is false.
// The chart's admission policies refuse those annotations.
package allocation
