// Package nri lets the container runtime ask about each container that holds GPU
// memory, through NRI (github.com/containerd/nri): containerd 2 offers it by default,
// 1.7 and CRI-O when configured to.
//
// # Protocol
//
//	CreateContainer   which environment?   that of this very container, and none
//	                                       of its pod's own making; no GPU for
//	                                       the others of its pod
//	StartContainer    may it run?          the kernel's limit is set and read back
//	StopContainer     it has ended         what is reserved for it is given back
//	Synchronize       these are there      limits for those that run, soon after, and again for
//	                                       those for which it fails
//
// When StartContainer is called, the container's control group exists and its
// program does not run yet: the runtime has made the container, waits for the answer,
// and only then lets it go (containerd, internal/cri/server/container_start.go). The
// kubelet's PreStartContainer comes before there is a control group.
//
// # Invariants
//
//   - Pods without GPU memory are left alone. Containers that gpumem gave something are
//     known by the environment that the kubelet passed on, and of others only those are
//     asked about that would be shown a GPU: in a pod with GPU memory they see none,
//     whether the pod, its envFrom or the image says so.
//   - An error keeps a container from being created or started, and the kubelet tries
//     again: it is better not to run than to run without the limit that was promised.
//
// # Decisions
//
// A pod's own value of a variable stands next to the device plugin's, and behind it,
// when the runtime asks. The library of NRI in containerd 2.2 and 2.3 (0.11, 0.12) changes the first
// of two alike, so that the second still counts, and it removes none. A container that
// such a value would mislead is therefore not created, with a sentence that says why;
// one value alone that differs is replaced.
//
// The runtime drops a plugin that does not answer in time, and goes on without it. So
// every answer has a time limit of its own, and the connection is made again whenever
// it is lost. While it is, the level is not kernel, nor while a container runs that started
// meanwhile and has no limit yet. It gets one when the connection is made again, or by the hook of NVIDIA's toolkit, which reads
// NVIDIA_GPU_MEMORY_LIMIT in its CDI modes.
package nri
