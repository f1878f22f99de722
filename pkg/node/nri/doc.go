// Package nri connects to the container runtime through NRI (github.com/containerd/nri). The runtime calls the
// plugin for every container on the node. containerd 2 enables NRI by default; 1.7 and CRI-O need
// configuration.
//
// # Protocol
//
//	CreateContainer   sets the container's environment, rejects reserved variables that the
//	                  pod sets, and hides GPUs from other containers of the pod
//	StartContainer    sets the kernel's limit and reads it back
//	StopContainer     releases the container's reservations
//	Synchronize       sets limits for running containers soon after the connection, and
//	                  retries failures
//
// When the runtime calls StartContainer, the container's control group exists, but its program does not run yet: the
// runtime has created the container, and waits for the plugin's answer before it starts the program (containerd,
// internal/cri/server/container_start.go). The kubelet's PreStartContainer call would be too early for a limit: no
// control group exists then.
//
// # Invariants
//
//   - The plugin does not touch pods without GPU memory. It recognizes containers with a grant by the
//     environment that the kubelet passed. It checks other containers only if the pod's env or envFrom or the
//     image would show them a GPU. In a pod with GPU memory, it hides the GPUs from such containers.
//   - An error of CreateContainer or StartContainer stops the container, and the kubelet retries. A container
//     must not run without its promised limit.
//
// # Decisions
//
// If the pod sets a variable that the device plugin also sets, the runtime passes both values, the device
// plugin's first. The NRI library in containerd 2.2 and 2.3 (0.11, 0.12) changes only the first of two
// variables with the same name, so the second value still takes effect. It also does not pass removals to the
// runtime. The plugin therefore rejects a container with a misleading second value, and explains why. It
// replaces a single wrong value.
//
// The runtime disconnects a plugin that does not answer in time, and continues without it. So every answer has
// a timeout, and the plugin reconnects after each loss. The node does not have level kernel while the plugin is
// disconnected, or while a container runs without the limit that it should have got during a disconnection.
// Such a container gets its limit after the reconnect, or from the hook of NVIDIA's toolkit, which reads
// NVIDIA_GPU_MEMORY_LIMIT in its CDI modes.
package nri
