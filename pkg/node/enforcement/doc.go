// Package enforcement finds out who can hold the containers of a node to their
// grants of GPU memory, and says so in the node's inventory.
//
// # Levels
//
//	kernel     NVIDIA's driver, per container
//	mps        the MPS server, per client process
//	advisory   the framework in the container, if it obeys
//
// What a level needs (NVIDIA, "MPS v3 Memory Partitioning" and "Multi-Process
// Service"):
//
//   - kernel: driver 615, cgroup v2, and the plugin called by the container runtime through
//     NRI, before a container's program runs. The driver has limits by NVML, with Linux's dmem
//     controller (6.14) or without. No MPS daemon: the driver refuses what is beyond a hard limit.
//   - mps: a running MPS daemon that was seen to limit a client, and GPUs of compute capability
//     7.0 or newer. It is the level of pods of one GPU (gpu.Inventory.LevelFor).
//
// # Invariants
//
//   - A level is reported only while everything that it needs has been seen. What
//     cannot be looked at counts as not there, with the reason.
//   - The level of a node holds on all GPUs that take pods. A GPU on which it fails alone is unhealthy.
//   - A limit that was set counts once it has been read back, in a control group beside the pods' groups.
//   - An interrupted call is no answer: it changes no level, and a limit that it sets late is given back.
//   - What is reserved for a group (its soft limit, which the driver adds to all above it) is given
//     back before the group goes, or else found above it and taken away.
//
// # Decisions
//
// A node whose level is set (--enforcement=mps) and cannot have it
// offers its GPUs as unhealthy, with the reason: nothing starts there without the
// limit, what runs goes on. A node with "auto" offers what it has, and
// pods that demand more go elsewhere.
//
// A library before CUDA in each container (LD_PRELOAD) would limit on every driver,
// and is not among the levels: a program that is linked statically or started
// without the variable goes past it, and one that uses calls which a new release
// of CUDA brings may break. What holds must be the driver's or the kernel's.
//
// A level is of a node, not of a GPU: a pod's annotation, the environment of its
// containers and the MPS daemon are per node as well. A node with one GPU that is
// too old for MPS is advisory as a whole.
//
// The soft limit is the hard one. A smaller one would let MPS end the program for its neighbours'
// sake, and none would leave its share unprotected where others have one.
//
// No file of dmem is written: only the driver adds what is reserved to the groups above. Nor is
// +dmem: what the root has, the kubelet and runc hand down, and a tree where they do not is
// theirs to change.
//
// Whether NVIDIA's toolkit has a hook for limits is not looked for: that a file names it proves
// nothing. Where it runs it sets the same limit, before the plugin does.
package enforcement
