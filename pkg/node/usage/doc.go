// Package usage compares the GPU memory that containers use with their grants.
//
// # Protocol
//
// After each probe of the GPUs, Watch reads NVML's list of processes, finds the container of each by its control groups, and adds
// up the memory:
//
//	process ──/proc/PID/cgroup──▶ pod UID, container ID
//	container ID ──pod status──▶ namespace, pod, container ──PodResources──▶ grant
//
// A container goes over its grant when it has used more, by more than a tolerance, at Looks probes in a row, and is within it
// again after as many: use that goes up and down around the limit is reported once. Going over is a Warning on the pod, and
// with --on-overuse=evict the beginning of its eviction.
//
// Kubernetes kills a container that outlives its grace period, and a killed MPS client can harm the others. Where MPS serves
// containers, Watch warns on each pod with the condition DisruptionTarget: preemption, the eviction API and taints set it.
//
// # Invariants
//
//   - Every process is in exactly one of: a container with a grant, a pod with a grant whose container is not known yet, an MPS
//     server of gpumem, foreign.
//   - The node does not offer memory in foreign use to pods. Foreign are processes of no pod, of pods without GPU memory, and of
//     containers without a grant: no grant counts their memory.
//   - A pod is evicted by the eviction API, so that disruption budgets hold. If a budget refuses it, the watch tries again after
//     the next probe.
//
// # Decisions
//
// The tolerance is for CUDA's contexts, which NVML counts and most frameworks do not: a framework that keeps its allocations to
// the grant must not be reported.
//
// The names of control groups have the pod's UID and the container's ID, by every container runtime. To ask the runtime would
// need its socket.
//
// A container is searched by its ID first: the control group of a static pod has the UID of the kubelet, and the API server has
// another. Until the status has the ID, the kubelet's UID is known by an annotation of the mirror pod.
//
// A container's time on a GPU is unknown while the time of any of its processes is unknown: a sum of the others would be too
// small, and look like a measurement.
//
// NVML may count the memory of MPS clients as their server's (NVIDIA, "Multi-Process Service", Limitations). The supervisor
// reports the server's process IDs; its name would prove nothing, since any program can take it. Its memory is
// not foreign: pods were granted it. Memory beyond a server's own is reported (ServerMemory).
//
// The plugin must see the host's process IDs, as NVML returns them. A process that it does not see has ended, or the plugin is
// not in the host's PID namespace: then no use counts as foreign, and the watch logs why.
package usage
