// Package enforcement finds the strongest level at which a node limits the GPU memory of containers, publishes it in the
// node's inventory, and sets the limits of level kernel.
//
// # Levels
//
//	kernel     NVIDIA's driver, per container
//	mps        the MPS server, per client process
//	advisory   the framework in the container, if it obeys
//
// Requirements (NVIDIA, "MPS v3 Memory Partitioning" and "Multi-Process Service"):
//
//   - kernel: driver 615, cgroup v2, and a container runtime that calls the plugin through NRI before a container's program
//     runs. The driver has limits by NVML, with Linux's dmem controller (6.14) or without. It refuses memory beyond a
//     hard limit without an MPS daemon.
//   - mps: a running MPS daemon that was seen to limit a client, and GPUs of compute capability
//     7.0 or newer. It is the level of pods of one GPU (gpu.Inventory.LevelFor).
//
// # Invariants
//
//   - A level is reported only while all its requirements have been seen. A requirement that cannot be checked counts as
//     missing, with the reason.
//   - The level of a node holds on all GPUs that take pods. A GPU on which it fails alone is unhealthy.
//   - A limit counts once it has been read back, in a control group beside the pods' groups.
//   - An interrupted call is no answer: it changes no level, and a limit that it sets late is freed.
//   - The reservation of a group (its soft limit, which the driver adds to all groups above it) is freed before the group
//     goes, or else found above it and subtracted.
//
// # Decisions
//
// A node that cannot have its set level (--enforcement=mps) offers its GPUs as unhealthy, with the reason: nothing starts there
// without the limit, and running containers go on. A node with "auto" offers its strongest level, and pods that demand more
// go elsewhere.
//
// A library before CUDA in each container (LD_PRELOAD) would limit on every driver. It is no level: a program that
// is linked statically or started without the variable passes it, and calls of a new release of CUDA may break it.
//
// A level is of a node, not of a GPU: a pod's annotation, the environment of its containers and the MPS daemon are per node
// as well. A node with one GPU that is too old for MPS is advisory as a whole.
//
// The soft limit is the hard one. A smaller one would let MPS end the program for its neighbours' sake, and none would leave
// its share unprotected where others have one.
//
// The plugin writes no file of dmem: only the driver adds reservations to the groups above. Nor does it enable +dmem: the
// kubelet and runc pass on the root's controllers, and a tree where they do not is theirs to change.
//
// The plugin ignores a hook of NVIDIA's toolkit for limits: a file that names it proves nothing. Such a hook sets the same limit,
// before the plugin does.
package enforcement
