// Package mps keeps NVIDIA's MPS control daemon running on a node, and reports whether it limits its clients.
//
// # Protocol
//
//	           start            answers, settings taken, a client of some GPU was limited
//	ended ─────────────▶ starting ───────────────────▶ healthy
//	  ▲                     │                             │ a question fails
//	  │ exits, or MaxFailures questions in a row fail     ▼
//	  └─────────────────────┴──────────────────────── not healthy
//
// Supervisor starts nvidia-cuda-mps-control in the foreground and sends commands as people do, to the standard input of the
// same program (NVIDIA, "Multi-Process Service"). It checks every reply.
//
// Client reads the status over a unix socket in the same directory. Nobody answers there once the supervisor has ended:
//
//	<dir>/pipe         CUDA_MPS_PIPE_DIRECTORY of daemon and clients
//	<dir>/clients      the same, read only, as clients have it
//	<dir>/shm          their /dev/shm, so that they need not share the host's IPC
//	<dir>/MIG-…/       the daemon of a MIG instance, with all of these but shm
//	<dir>/log          CUDA_MPS_LOG_DIRECTORY
//	<dir>/status.sock  the supervisor's status
//	<dir>/modes.json   compute modes as they were found, while they are changed
//
// # Invariants
//
//   - A daemon has the GPUs that answer when it is started. A GPU on which no client was limited yet keeps no other from
//     its clients.
//   - Compute modes are left as they were found, also by a supervisor that was killed: the next one restores them.
//   - Clients can neither remove the daemon's socket nor replace it: they have its folder read only. The supervisor asks by
//     that folder whether the daemon works. Where NVIDIA's tool cannot use such a folder, the supervisor asks by the writable
//     one, and the probe alone shows that clients get through.
//   - Files of clients in /dev/shm are bounded, cannot be executed, and are removed when no container is left that could
//     have made them.
//   - A supervisor that has to end reports so at once, waits for clients to end (Config.Drain), and then ends the daemon.
//
// # Decisions
//
// The supervisor runs in a DaemonSet apart from the device plugin: when the daemon ends, so do the programs of all its
// clients, and an update of the plugin must not cost them that. For the same reason its DaemonSet is updated by hand (OnDelete).
//
// A client's limits are in its environment, which the device plugin sets for each container. The daemon's default is all that
// the GPU offers: a container gets no more without the variable, and a default can only be made tighter. The interface of
// newer drivers (MPS v3), with limits on the daemon's side, is not used: from driver 615 on the level kernel
// limits memory without a daemon.
//
// The probe (package probe) is a process and not a container. It proves the daemon, its server, and the way that limits take.
// It runs once for each start of a daemon, because it costs a context.
//
// One server serves the users of all containers (-multiuser-server): with one for each, containers of a second user would wait
// until the first user's have ended. A daemon that refuses the option is started without it (trial).
//
// All clients of a node share one /dev/shm, because daemon and clients find one another there by name. So it is no wall between
// them (docs/limits.md). The supervisor mounts it, since a volume of its pod has another path for each pod, and the kubelet
// keeps a container's path for the life of the pod. It outlives the supervisor for the same reason.
//
// A daemon serves one MIG instance, or the GPUs that are not in MIG mode (NVIDIA, "Multi-Process Service"). A node's
// supervisors run in one process, which has the same /dev/shm as their clients.
//
// With Config.Exclusive the GPUs are in EXCLUSIVE_PROCESS mode meanwhile: a program that does not use the daemon then gets
// no GPU at all, instead of one without a limit.
package mps
