// Package coexist keeps gpumem away from the GPUs of a node that are somebody
// else's: those that its flags leave alone, and those that NVIDIA's device
// plugin has given to a pod.
//
// # Protocol
//
// The kubelet's PodResources names, for each container, the devices of each
// resource. NVIDIA's plugin calls a whole GPU by its UUID and the replicas of
// one that it shares "UUID::n".
//
// # Decisions
//
// What is left alone by choice is not in the inventory at all. A GPU that is in
// use as nvidia.com/gpu is still in it, as unhealthy and with the pod that has it:
// people see where it went, pods of gpumem that run on it go on and count, no
// new ones come, and it is back by itself when that pod has ended.
//
// GPUs that another driver of dynamic resource allocation publishes on the node, such as NVIDIA's gpu.nvidia.com, are
// unhealthy here while it does (Heed). Without this, kube-scheduler allocates such a GPU to a claim of that driver and
// gpumem allocates it to a pod (TestAGPUThatTwoDriversPublishIsAllocatedTwice in test/scheduler).
//
// An ID of gpushare's device plugin does not name its GPU, so all GPUs of a node are unhealthy while
// one of its pods holds any. The administrator drains the node: see docs/migrating-from-gpushare.md.
//
// A GPU with a client of a retired MPS protocol (Retire) is unhealthy until that client has ended. Version 0.2 recorded
// the protocol with each slot and each prepared claim. Such a container cannot start again, for its namespace of MPS is
// gone, and new pods next to it would be limited by other rules.
//
// Before the kubelet's first answer all of this is unknown, so the node holds its GPUs back (Looked) and asks each second. After
// 10 seconds it publishes them as unhealthy, because people need a reason. Later failures leave the last answer in place.
//
// Nothing can be done here about the other direction: NVIDIA's plugin does not
// ask who uses a GPU before it gives it away. When both have, that is said in an
// event of the node, once for each time that it begins.
//
// Of a GPU in MIG mode the instances are offered, or nothing (package nvml): its memory is split already, by
// the hardware, and NVIDIA's plugin may hand the parts out.
package coexist
