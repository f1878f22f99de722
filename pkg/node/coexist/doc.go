// Package coexist excludes GPUs of a node that have another owner: GPUs that the flag --devices omits, and GPUs
// that another device plugin or driver has allocated or publishes.
//
// # Protocol
//
// The kubelet's PodResources API lists, for each container, the devices of each resource. NVIDIA's plugin
// identifies a whole GPU by its UUID, and the replicas of a shared GPU by "UUID::n".
//
// # Decisions
//
// The inventory omits GPUs that --devices omits. An index selects the GPU that first had it: after the loss of
// a GPU or a change of bus order, another owner's GPU may have the index. A file records the first index of
// each GPU (SetIndexRecord). The MPS supervisor reads it too (Selector.Selected). A change of --devices discards it.
//
// A GPU in use as nvidia.com/gpu stays in the inventory, unhealthy and with its pod's name. Administrators see
// where it went, gpumem's pods on it continue and count, and it recovers when that pod has ended.
//
// While another driver of dynamic resource allocation, such as NVIDIA's gpu.nvidia.com, publishes a GPU of the
// node, the GPU is unhealthy here (SetPublished). Otherwise kube-scheduler could allocate it to a claim of that
// driver while gpumem allocates it to a pod (TestAGPUThatTwoDriversPublishIsAllocatedTwice in test/scheduler).
//
// An ID of gpushare's device plugin does not contain its GPU. All GPUs of a node are therefore unhealthy while
// a pod has such an ID. The administrator drains the node: see docs/migrating-from-gpushare.md.
//
// A GPU with a client of a retired MPS protocol (SetRetired) is unhealthy until that client has ended. Version 0.2
// recorded the protocol with each slot and each prepared claim. Such a container cannot restart, because its
// MPS namespace is gone, and different rules would limit new pods on the same GPU.
//
// Before the kubelet's first answer, all of this is unknown. The node then publishes no GPUs (Looked), and
// retries each second. After 10 seconds, it publishes them as unhealthy, so that administrators see a reason.
// After later failures, the last answer stays valid.
//
// gpumem cannot prevent the reverse: NVIDIA's plugin allocates GPUs without regard to their users. The node
// gets one Event each time both plugins begin to allocate a GPU.
package coexist
