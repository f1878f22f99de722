// Package usage compares the GPU memory that containers use with their grants, and reports or evicts pods that
// use more.
//
// # Protocol
//
// After each probe of the GPUs, Watch reads NVML's list of processes, resolves the container of each process by
// its control groups, and sums up the memory:
//
//	process ──/proc/PID/cgroup──▶ pod UID, container ID
//	container ID ──pod status──▶ namespace, pod, container ──PodResources──▶ grant
//
// A container exceeds its grant after it has used more than grant and tolerance at ConfirmingSamples consecutive
// probes. It is within its grant again after as many probes without excess. Usage that varies around the limit is
// therefore reported once. Watch records a Warning event on a pod that exceeds its grant, and evicts it with
// --on-overuse=evict.
//
// Kubernetes kills a container that outlives its grace period, and the death of an MPS client can harm other clients.
// On nodes where MPS serves containers, Watch therefore records a Warning on each pod with GPU memory and the
// condition DisruptionTarget, which preemption, the eviction API and taints set.
//
// # Invariants
//
//   - Every process with readable control groups belongs to exactly one of: a container with a grant, a pod with
//     a grant whose container is still unknown, an MPS server of gpumem, foreign use.
//   - The node does not offer foreign memory to pods. Processes are foreign if they belong to no pod, to a pod
//     without GPU memory, or to a container without a grant, because no grant covers their memory.
//   - Pods are evicted through the eviction API, which respects disruption budgets. If a budget rejects the
//     eviction, Watch retries after the next probe.
//
// # Decisions
//
// The tolerance covers CUDA contexts. NVML counts them, but most frameworks do not: a framework that limits its
// allocations to the grant must not be reported.
//
// With every container runtime, the names of control groups contain the pod's UID and the container's ID.
// Queries to the runtime would require its socket.
//
// Watch resolves a container by its ID first: the control group of a static pod contains the kubelet's UID,
// which differs from the API server's. Until the pod's status contains the ID, an annotation of the mirror pod
// provides the kubelet's UID.
//
// A container's time on a GPU is unknown while the time of any of its processes is unknown. A sum of the other
// processes would be too small, and look like a measurement.
//
// NVML may count the memory of MPS clients as their server's (NVIDIA, "Multi-Process Service", Limitations). The
// supervisor reports the server's process ID. The process name would prove nothing, because any program can use
// it. The server's memory is not foreign, because grants of pods cover it. ServerMemory reports the memory of
// servers that use more than a server needs for itself.
//
// The plugin needs the host's process IDs, because NVML returns those. If a process is not visible, it has ended,
// or the plugin is outside the host's PID namespace. If no process is visible, no use counts as foreign, and the
// watch logs the reason.
package usage
