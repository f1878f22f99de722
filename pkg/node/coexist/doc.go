// Package coexist keeps gpumem away from the GPUs of a node that have another owner: those that the flag --devices leaves out,
// and those that another device plugin or driver has allocated or publishes.
//
// # Protocol
//
// The kubelet's PodResources names, for each container, the devices of each resource. NVIDIA's plugin calls a whole GPU by its
// UUID and the replicas of a shared one "UUID::n".
//
// # Decisions
//
// The inventory omits GPUs that --devices leaves out. An index selects the GPU that had it first: a lost GPU or another order
// of the bus moves the indexes, and the GPU with the index may have another owner by then. A file records the first index of
// each GPU (Remember), also for the MPS supervisor (Selector.Selected). A change of --devices discards it. A GPU in use as nvidia.com/gpu stays in it, unhealthy and with the name
// of its pod: people see where it went, gpumem's pods on it run on and count, and it returns when that pod has ended.
//
// GPUs that another driver of dynamic resource allocation publishes on the node, such as NVIDIA's gpu.nvidia.com, are
// unhealthy here while it does (Heed). Without this, kube-scheduler allocates such a GPU to a claim of that driver and
// gpumem allocates it to a pod (TestAGPUThatTwoDriversPublishIsAllocatedTwice in test/scheduler).
//
// An ID of gpushare's device plugin does not name its GPU, so all GPUs of a node are unhealthy while
// one of its pods has any. The administrator drains the node: see docs/migrating-from-gpushare.md.
//
// A GPU with a client of a retired MPS protocol (Retire) is unhealthy until that client has ended. Version 0.2 recorded
// the protocol with each slot and each prepared claim. Such a container cannot start again, for its namespace of MPS is
// gone, and new pods next to it would be limited by other rules.
//
// Before the kubelet's first answer all of this is unknown, so the node holds its GPUs back (Looked) and asks each second.
// After 10 seconds it publishes them as unhealthy, because people need a reason. Later failures leave the last answer in place.
//
// gpumem cannot prevent the other direction: NVIDIA's plugin allocates GPUs without regard to their users. An Event of the node
// reports each GPU that both plugins have allocated, once for each time that this begins.
package coexist
