// Package api is the border between Kubernetes objects and the core: the names
// of resources and annotations, what a pod asks for, what a node offers, and
// the Binding that carries a placement to the API server.
//
// # Invariants
//
//   - A value that cannot be read is an error that says which annotation or
//     resource of what container is wrong and what is expected. It is never
//     taken for absent, nor for a default.
//   - What is written can be read back, by this version and by the next.
//   - Each annotation of the domain is one row of a table (annotations): its name, who writes it,
//     and of what users write what a value must be, how it is read into the request and what
//     explain says of it. The names that are known, the chart's admission policies
//     (charts/gpumem/files/annotations.yaml) and the tables in docs/pods.md and docs/reference.md are made
//     of it. No label of the domain means anything.
//
// # Decisions
//
// Annotations that programs read are one versioned JSON value each. Fields that
// a reader does not know are ignored, so that a newer writer may add some; a
// change that an older reader would misread raises the version.
//
// What is kept for a pod that waits (Reservation) is such a value too, in the message of a
// condition of the pod. It needs a place that goes with the pod and that its owner cannot write:
// the API server takes no status from those who create or change a pod, and the role edit has no
// right to pods/status. Who may patch that can nominate the pod to a node in any case. A
// reservation that cannot be read counts as none, against the first invariant: it lives for a
// minute, and without it a pod waits like any other.
//
// An assignment says in which unit it counts. That is written again as it was, and is compared
// where the assignment comes to its node (placement.NewNode), for a pod does not tell the
// node's. A pod that was given larger units has more of the node's, and counts so. A smaller
// unit is not believed: the pod's owner can write one too, and the pod's number counts for less
// then than the kubelet has given. Without a unit it counts in the node's, and one that makes
// no sense cannot be read.
//
// Whose word an assignment is follows from when it is there. A Binding sets the node, its
// annotations and the condition PodScheduled in one write, and a pod's owner can write no
// condition. A pod that is made with a node name has none of that type until the kubelet has
// admitted it, for no scheduler looks at it, and no assignment of it is read until then: it may be
// anywhere on its node, as the pods that have no assignment. What the condition says does not
// matter: a scheduler that has not heard of a Binding writes that it found no node.
// Afterwards the device plugin has given it something, and puts right
// what is written.
//
// An assignment with the field "held" is what the kubelet has given: the number of its GPUs stands above the
// annotation gpu-count, once the kubelet has admitted the pod. Its units are the spec's
// all the same. A pod's owner can write that too, and gains no more by it than by gpu-count:
// for both there is "given" in the node's inventory, what the kubelet has given to pods of
// which less was written, by UID. A reader of before that goes by the pods' annotations alone, and a
// plugin of before writes none. It names GPUs by their indexes, for there may
// be as many entries as pods, and all of a node's annotations have 256 KiB.
//
// The state is in annotations and not in objects of an own kind. A claim or an
// allocation of its own would be a second object to write with the pod and to
// find orphaned later, and a CRD to install first. An annotation goes with its pod.
//
// A Binding's annotations are merged into the pod in the same guarded write
// that sets its node (k8s.io/kubernetes/pkg/registry/core/pod/storage), so node
// and GPU become visible together or not at all.
package api
