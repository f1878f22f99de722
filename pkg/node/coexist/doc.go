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
// The inventory omits GPUs that --devices omits. An index in --devices selects the GPU that first had this index,
// because another owner's GPU may get the index after the loss of a GPU or a change of bus order. A file records
// the first index of each GPU (SetIndexRecord). The MPS supervisor reads the file too (Selector.Selected). A
// change of --devices discards the record.
//
// A GPU in use as nvidia.com/gpu stays in the inventory, unhealthy and with its pod's name, so that
// administrators see its user. gpumem's pods on the GPU continue, and their memory stays allocated. The GPU
// becomes healthy when the other plugin's pod has ended.
//
// While another driver of dynamic resource allocation, such as NVIDIA's gpu.nvidia.com, publishes a GPU of the node,
// the GPU is unhealthy in gpumem's inventory (SetPublished). Otherwise kube-scheduler could allocate it to a claim of
// that driver while gpumem allocates it to a pod (TestAGPUThatTwoDriversPublishIsAllocatedTwice in test/scheduler).
//
// A device ID of gpushare's plugin does not identify a GPU. All GPUs of a node are therefore unhealthy while a
// pod has such an ID. The administrator drains the node: see docs/migrating-from-gpushare.md.
//
// A GPU with a client of a retired MPS protocol (SetRetired) is unhealthy until that client has ended, because new
// pods on the GPU would be limited by different rules. The plugin reads the client's protocol from the records of
// version 0.2 about device IDs and prepared claims. The client's container cannot restart, because its MPS namespace
// is gone.
//
// Before the kubelet's first answer, other uses of the GPUs are unknown. The filter then publishes no inventory
// (Looked), and retries each second. After 10 seconds, it publishes the GPUs as unhealthy, so that administrators
// see a reason. After later failures, the last answer stays valid.
//
// gpumem cannot keep NVIDIA's plugin from allocating a GPU that gpumem's pods use. The node gets one Event each time a
// GPU becomes allocated by both plugins.
package coexist
