// Package enforcement finds out who can hold the containers of a node to their
// grants of GPU memory, and says so in the node's inventory.
//
// # Levels
//
//	kernel     the NVIDIA driver and Linux's dmem controller, per container
//	mps        the MPS server, per client process
//	advisory   the framework in the container, if it obeys
//
// What a level needs (NVIDIA, "MPS v3 Memory Partitioning" and "Multi-Process
// Service"; Linux, Documentation/admin-guide/cgroup-v2.rst, "DMEM"):
//
//   - kernel: driver 615, cgroup v2 with a dmem region for each GPU (Linux 6.14),
//     a running MPS daemon that accounts for memory, and somebody who writes the
//     limit into a container's cgroup before its program runs: the hook of
//     NVIDIA's container toolkit, or the plugin itself, called by the container
//     runtime through NRI.
//   - mps: a running MPS daemon and GPUs of compute capability 7.0 or newer.
//
// # Invariants
//
//   - A level is reported only while everything that it needs has been seen. What
//     cannot be looked at counts as not there, with the reason.
//   - The level of a node holds on all of its GPUs.
//   - A limit that was written counts once it has been read back.
//
// # Decisions
//
// A node that was told which level to have (--enforcement=mps) and cannot have it
// offers its GPUs as unhealthy, with the reason: nothing starts there without the
// limit, what runs goes on. A node that was told "auto" offers what it has, and
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
// Whether the toolkit has its hook is read from the CDI specifications on the
// node, where the hook is named, and from the toolkit's programs, which contain
// its name. Nothing of the host is executed for that.
//
// The driver has a backend of its own for kernels without dmem. What it has been
// told cannot be read from the file system there, so it does not count.
package enforcement
