// Package claims allocates the GPUs of a node by dynamic resource allocation. Pods reference ResourceClaims,
// kube-scheduler allocates them, and this package is the driver that prepares each claim for the kubelet
// (k8s.io/dynamic-resource-allocation/kubeletplugin).
//
// # Protocol
//
// The node's GPUs are one pool with the node's name. Each GPU is a device that many claims share
// (allowMultipleAllocations), with the capacities "memory", in steps of the unit, and "cores".
//
//	kube-scheduler   allocates from the published devices  Resources
//	kubelet          NodePrepareResources(claims)          Driver.PrepareResourceClaims
//	container runtime  makes the container, by the claim's CDI file
//	kubelet          NodeUnprepareResources(claims)        Driver.UnprepareResourceClaims
//
// To prepare a claim, the driver writes it to the checkpoint, writes its CDI file, and then answers. To unprepare
// it, the driver removes the file, removes the claim from the checkpoint, and then answers. So the checkpoint
// contains every claim that the kubelet may consider prepared. If a process is killed between two steps, the next
// process completes them (Driver.Restore): it writes missing files again, and removes the files of claims that
// the checkpoint lacks. Files are replaced atomically. The kubelet repeats unanswered calls. The driver drops a
// call that the kubelet has canceled: the kubelet may have released the claim since, and would then never
// unprepare it.
//
// If the container runtime calls the plugin (package nri), a container starts only while its claim's level holds, that
// is, while the node can enforce the level. At the level kernel, the plugin sets the container's limit before the
// start. It reads the claim's UID from a variable of the claim's CDI device, and checks in the pod's spec that the
// container uses this claim.
//
// # Versions
//
// Consumable capacity (the feature gate DRAConsumableCapacity) is on by default since Kubernetes 1.36. Without
// it, an allocation contains no amount, and the driver rejects the claim. The checkpoint has a version. Recover
// rebuilds a checkpoint that is lost, unreadable or of another version. It reads the prepared claims and their
// levels from the CDI files, and the allocations of the node's pods from the API server. The driver prepares
// nothing before the checkpoint is rebuilt.
//
// # Invariants
//
//   - On each GPU, the memory of prepared claims is at most the GPU's offer, and their cores are at most 100.
//     kube-scheduler ensures both bounds. The driver checks them again, and rejects a claim that exceeds one.
//   - A repeated call does not change the amounts of a prepared claim.
//   - A container's environment depends only on its claim. It equals the environment from the device plugin for
//     the same grant at the same level (render.Config.Response).
//   - A GPU has one owner: either this package or the device plugin allocates all GPUs of a node. To switch the
//     owner, the node stops accepting pods, and waits until all pods and claims of the old owner have ended.
//
// # Decisions
//
// The node's inventory contains pods' allocations by prepared claims (Allocations). Readers of inventories
// therefore need neither a watch nor permissions for claims.
//
// A device is named after the GPU's UUID: allocations outlive a reboot, and a reboot may change the GPU's index.
//
// The checkpoint is in the kubelet's directory, next to the kubelet's checkpoint of the same claims, so that
// both checkpoints are lost together.
//
// Values from CDI replace the pod's values of the same variables before the runtime calls NRI plugins. So a pod
// with a claim cannot name another GPU or a larger limit, and gpumem needs no admission policy against that. With
// the device plugin, in contrast, the pod's values take precedence.
//
// A claim has one request, and a container uses one claim. The variables of a second claim would replace those from
// the first, and the container would hold a GPU that it cannot see. To get several GPUs, a request sets its field
// count. The driver rejects a claim with several requests.
//
// Containers that share a claim share its GPU, and each can use all of the claim's memory: the limits of the
// driver and of MPS apply per container or process. For separate limits, create one claim per container.
//
// A request without memory gets the whole GPU, as with other drivers. A request without cores is charged no
// cores, and its use of cores is not limited, as with the device plugin.
//
// Devices are published smallest first. kube-scheduler takes the first device that fits, so large GPUs stay
// free longer.
//
// The driver has no parameters (opaque device configuration), and rejects a claim with one instead of ignoring it.
// To request an enforcement level, a claim selects devices by the attribute "enforcement". A claim cannot request
// a placement policy.
package claims
