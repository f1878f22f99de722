// Package usage compares what containers use of GPUs with what they were granted.
//
// # Protocol
//
// After each probe of the GPUs, Watch takes the list of processes that NVML has,
// finds out from the control groups of each which container it is in, and adds up:
//
//	process ──/proc/PID/cgroup──▶ pod UID, container ID
//	container ID ──pod status──▶ namespace, pod, container ──PodResources──▶ grant
//
// A container goes over its grant when it has used more, by more than a tolerance,
// at Looks probes in a row, and is within it again after as many: what goes up and
// down around the limit is reported once. Going over is a Warning on the pod, and, if
// so decided, the beginning of its eviction.
//
// # Invariants
//
//   - Every process is in exactly one of: a container with a grant, a pod with a
//     grant whose container is not known yet, an MPS server of gpumem, foreign.
//   - What foreign programs use is not offered to pods. Foreign are processes of no
//     pod, of pods that hold no GPU memory, and of containers without a grant: no one has counted theirs.
//   - A pod is evicted by the eviction API, so that disruption budgets hold. One
//     that a budget keeps is tried again after the next probe.
//
// # Decisions
//
// The tolerance is for CUDA's contexts, which NVML counts and most frameworks do
// not: a framework that keeps its allocations to the grant is not to be reported.
//
// Control groups are read by their names: container runtimes write the pod's UID
// and the container's ID into them, and asking the runtime would need its socket.
//
// A container is looked for by its ID first: the control group of a static pod has the UID
// that the kubelet gave it, and the API server another. Until the status has the ID, the
// kubelet's is known by an annotation of the pod that mirrors it.
//
// How much of a GPU's time a container uses is not known as soon as it is not known of one of
// its processes: a sum without it would be too small, and look like a measurement.
//
// NVML may count the memory of MPS clients as their server's (NVIDIA, "Multi-Process Service", Limitations). The server
// is found by the process IDs that the supervisor reports, and not by its name, which any program can take. Its memory is
// not foreign: pods were granted it. Memory beyond a server's own is reported (ServerMemory).
//
// The plugin must see the host's process IDs for this, as NVML tells them. A
// process that it does not see has ended, or the plugin is not in the host's PID
// namespace: then nothing is taken for foreign (see Watch.Blind).
package usage
