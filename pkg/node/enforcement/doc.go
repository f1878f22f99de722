// Package enforcement determines the strongest level at which a node can limit the GPU memory of containers,
// publishes it in the node's inventory, and sets the limits of level kernel.
//
// # Levels
//
//	kernel     NVIDIA's driver, per container
//	mps        the MPS server, per client process
//	advisory   the framework in the container, if it cooperates
//
// Requirements (NVIDIA, "MPS v3 Memory Partitioning" and "Multi-Process Service"):
//
//   - kernel: driver 615, cgroup v2, and a container runtime that calls the plugin through NRI before a container's
//     program runs. The driver provides limits through NVML, with or without Linux's dmem controller (6.14). It
//     needs no MPS daemon to reject allocations beyond a hard limit.
//   - mps: a running MPS daemon that has demonstrably limited a client, and GPUs of compute capability 7.0 or
//     newer. The level applies to pods with one GPU (gpu.Inventory.LevelFor).
//
// # Invariants
//
//   - A level is reported only while all its requirements are verified. A requirement that cannot be checked
//     counts as missing, with the reason.
//   - The level of a node holds on all GPUs that accept pods. If it holds only on some, the other GPUs are unhealthy.
//   - A limit is confirmed once the plugin has read it back. The plugin tests the driver with a control group next to
//     the pods' groups.
//   - An interrupted call of the driver proves nothing, and changes no level. If the call sets a limit late, the
//     plugin releases that limit.
//   - The reservation of a group is its soft limit, which the driver adds to all groups above it. The plugin
//     releases the reservation before the group is removed. If the group was removed first, the plugin subtracts
//     the remainder from the groups above.
//
// # Decisions
//
// If a node cannot provide its configured level (--enforcement=mps), its GPUs are unhealthy, with the reason. On such
// a node, no container starts without the limit, and running containers continue. With "auto", the node offers its
// strongest level, and pods that require more go to other nodes.
//
// A preloaded library between the program and CUDA (LD_PRELOAD) would work with every driver. It is not a
// level, because programs that are statically linked or started without the variable bypass it, and new CUDA
// releases may break it.
//
// The level belongs to the node, not to a GPU: a pod's annotation, the environment of its containers and the MPS
// daemon are not specific to one GPU. If one GPU is too old for MPS, the whole node is advisory.
//
// The soft limit equals the hard limit. With a smaller soft limit, MPS could end the program to serve its
// neighbours. Without a soft limit, the container's memory would be unprotected on a GPU on which other containers
// have one.
//
// The plugin writes no dmem files, because only the driver adds reservations to the groups above. It does not
// enable +dmem either: the kubelet and runc propagate the root's controllers, and own the configuration of the
// control groups.
//
// The plugin ignores a limit hook of NVIDIA's toolkit: a file that mentions the hook does not prove that it works.
// A working hook sets the same limit, before the plugin does.
package enforcement
