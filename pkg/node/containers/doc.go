// Package containers is what the containers of a node get: environment, mounts and CDI names for
// the kubelet (Config.Response), the answers to the container runtime (Containers, for package nri),
// and the amounts that were granted, to be compared with use (Grants, for package usage).
//
// # Invariants
//
//   - What a container gets follows from its grant and the level at which that was handed out:
//     kubelet and runtime get the same answer.
//   - A container that was promised a limit does not start where its amount is unknown.
//
// # Decisions
//
// The kubelet does not report plain init containers (PodResources lists the others
// and sidecars). What one has follows from its pod: as much as it asks for, of the GPUs
// that the pod's other containers have, whose slots the kubelet takes for it. Where there
// are no others, it has what it was given since the plugin began, or else that much of the
// GPUs that are assigned to the pod.
//
// The answers about the two resources of a container are merged by the kubelet,
// one before the other as it happens. So that about cores repeats nothing of the
// other.
package containers
