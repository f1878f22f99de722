// Package claims hands out the GPUs of a node by dynamic resource allocation: pods name
// ResourceClaims, kube-scheduler allocates, and this package is the driver that the kubelet asks to
// prepare each claim (k8s.io/dynamic-resource-allocation/kubeletplugin).
//
// # Protocol
//
// The node's GPUs are one pool, named as the node. Each is a device that many claims share
// (allowMultipleAllocations), with the capacities "memory", in steps of the unit, and "cores".
//
//	kube-scheduler   allocates of the published devices    Devices
//	kubelet          NodePrepareResources(claims)          Driver.PrepareResourceClaims
//	container runtime  makes the container, by the claim's CDI file
//	kubelet          NodeUnprepareResources(claims)        Driver.UnprepareResourceClaims
//
// To prepare a claim is, in this order: to write it into the checkpoint, to write its CDI file, to
// answer. To undo it is: to remove the file, to take the claim from the checkpoint, to answer. So the
// checkpoint has every claim that the kubelet may believe to be prepared, and a process that is
// killed between any two steps leaves what the next one puts right: a claim without its file gets it
// again (Driver.Restore), a file without its claim is removed, half a file was never in its place.
// The kubelet asks again for what it was not answered. What it waits for no longer is not done: a claim
// that is prepared late, after it was given back, would be so for ever.
//
// Where the container runtime asks about containers (package nri), a container starts only while what
// holds it to its claim does, and at the level kernel has its limit then (Containers). A variable of its CDI device
// names the claim, and its pod's spec proves that the container uses it.
//
// # Versions
//
// Consumable capacity (the feature gate DRAConsumableCapacity) is on by default from Kubernetes 1.36
// on. Without it an allocation has no amount, and the claim is refused. The checkpoint has a version.
// A checkpoint that is lost, unreadable or of another version is rebuilt (Recover): CDI files name the prepared claims
// and their levels, and the API server has the allocations of the node's pods. Until then nothing is handed out.
//
// # Invariants
//
//   - On each GPU, the memory of prepared claims is at most what the GPU offers, and their cores at
//     most 100. kube-scheduler sees to that. The driver looks for itself, and refuses.
//   - A claim that is prepared is not prepared for less or more when it is asked for again.
//   - What a container gets follows from its claim alone, and is what the device plugin would give
//     it for the same grant at the same level (containers.Config.Response).
//   - A GPU has one owner: a node is served by this package, or by the device plugin. It changes when
//     nothing is left of the one (Left), and takes nothing new while it waits for that.
//
// # Decisions
//
// What pods have by claims is written into the node's inventory (Allocations), from what is prepared:
// who reads inventories has it without a watch of claims, and needs no right to read them.
//
// A device is named after the GPU's UUID. Its index may change with a reboot, and allocations
// outlive that.
//
// The checkpoint lies in the kubelet's folder, where the kubelet keeps its own of the same claims.
// Whatever takes away the one takes away the other.
//
// What CDI adds replaces what the pod says of the same variable, before NRI is asked, unlike the device plugin's
// environment, which the pod's own comes after. So a pod cannot name another GPU or a larger limit,
// and no admission policy has to keep it from that.
//
// A claim has one request, and a container uses one claim: the variables of a second would replace
// those of the first, and the container would have paid for a GPU that it does not see. Several GPUs
// are one request with a count. A claim with several requests is refused.
//
// Containers that share a claim share its GPU, and each may use all of it: the driver's and MPS'
// limits are per container or process. For a limit of each, write a claim for each.
//
// A request that names no memory gets the whole GPU, as it does with other drivers. One that names no
// cores has none counted, and is not limited to any, as with the device plugin.
//
// Devices are published smallest first. kube-scheduler takes the first that fits, and so keeps
// large GPUs whole a little longer.
//
// Parameters in a claim are refused. What they could say (a level, a policy) is chosen by the
// devices' attributes, or is not to be had. Silence would look like consent.
package claims
