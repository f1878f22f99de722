// Package containers is what the containers of a node get: environment, mounts and CDI names for
// the kubelet (Config.Response), the answers to the container runtime (Containers, for package nri),
// and the amounts that were granted, to be compared with use (Grants, for package usage).
//
// # Invariants
//
//   - Kubelet and runtime get the same answer: the one that is recorded. Settings and levels that changed
//     since apply to new containers.
//   - A container that was promised a limit does not start where its amount is unknown.
//
// # Decisions
//
// A grant without a response (of version 0.2, or of a lost file) has its strategy and level from the container's
// environment, which is the kubelet's stored answer. The kubelet does not
// list plain init containers. One without a grant has the amount that its pod asks for it, of the GPUs of the pod's
// other containers or, where these have none, of the pod's annotation.
//
// The answers about the two resources of a container are merged by the kubelet,
// one before the other as it happens. So that about cores repeats nothing of the
// other.
package containers
