// Package render renders grants for containers: environment, mounts and CDI names for the kubelet
// (Config.Response), and the answers to the container runtime (Containers, for package nri). It also provides
// the granted amounts for comparison with usage (Grants, for package usage).
//
// # Invariants
//
//   - The kubelet and the runtime get the same recorded answer. Later changes of settings and levels apply only
//     to new containers.
//   - A container that was promised a limit does not start while the amount of the limit is unknown.
//
// # Decisions
//
// For a grant without a response (from version 0.2, or a lost file), strategy and level come from the
// container's environment, which is the kubelet's stored answer. The kubelet does not list plain init
// containers. For a plain init container without a grant, the amount comes from the pod's spec, and the GPUs
// are those allocated to the pod's other containers or, if these have none, the GPUs in the pod's annotation.
//
// The kubelet merges the answers for the two resources of a container in undefined order. The answer for cores
// therefore repeats no variable of the answer for memory.
package render
