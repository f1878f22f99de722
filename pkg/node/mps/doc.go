// Package mps keeps NVIDIA's MPS control daemon running on a node, and tells
// whether it works.
//
// # Protocol
//
//	           start            answers, settings taken, a client of some GPU was limited
//	ended ─────────────▶ starting ───────────────────▶ healthy
//	  ▲                     │                             │ a question fails
//	  │ exits, or MaxFailures questions in a row fail     ▼
//	  └─────────────────────┴──────────────────────── not healthy
//
// Supervisor starts nvidia-cuda-mps-control in the foreground and speaks to it as
// people do, by the same program (NVIDIA, "Multi-Process Service"), which takes commands
// on its standard input. Every reply is checked. The
// daemon counts as healthy only after it has taken all settings, and stops to at the
// first question that it does not answer, before it is started again.
//
// Others ask over a unix socket in the same directory (Client), which no one
// answers once the supervisor has ended:
//
//	<dir>/pipe         CUDA_MPS_PIPE_DIRECTORY of daemon and clients
//	<dir>/clients      the same, read only, as clients have it
//	<dir>/shm          their /dev/shm, so that they need not share the host's IPC
//	<dir>/MIG-…/       the daemon of a MIG instance, with all of these but shm
//	<dir>/log          CUDA_MPS_LOG_DIRECTORY
//	<dir>/status.sock  where the supervisor answers
//	<dir>/modes.json   compute modes as they were found, while they are changed
//
// # Invariants
//
//   - A daemon has the GPUs that answer when it is started. A GPU on which no client was limited yet keeps no other from
//     its clients.
//   - Compute modes are left as they were found, also by a supervisor that was
//     killed: the next one puts them back.
//   - Clients can neither take away the daemon's socket nor put another in its place: they
//     have its folder read only. The daemon is asked that way whether it works. Where NVIDIA's tool
//     cannot use such a folder, the supervisor asks by its own, and the probe alone shows that clients
//     get through.
//   - What clients leave in /dev/shm is bounded, runs no program, and goes when none of the
//     containers is left that could have made it.
//   - A supervisor that has to end says so at once, so that no new client comes,
//     waits for clients to end (Config.Drain), and then ends the daemon.
//
// # Decisions
//
// The supervisor runs in a DaemonSet of its own and not next to the device plugin: when
// the daemon ends, so do the programs of all its clients, and an update of the plugin
// must not cost them that. For the same reason its DaemonSet is updated by hand
// (OnDelete).
//
// The client's limits are in its environment, put there by the device plugin, for
// each container its own. The daemon's default is what the GPU offers in all: no container gets
// more by leaving the variable out, and a default can only be made tighter. The interface of newer
// drivers (MPS v3), with limits on the daemon's side, is not used: from driver 615 on the level kernel
// limits memory without a daemon.
//
// The probe (package probe) is a process and not a container. It proves the daemon, its server,
// and the way that limits take; it is made when a daemon has started, for it costs a context.
//
// One server serves the users of all containers (-multiuser-server): with
// one for each, containers of a second user would wait until the first user's have ended. A daemon that
// refuses the option is started without it (trial).
//
// /dev/shm is one file system for all clients of a node, for daemon and clients find one another
// there by name. So it is no wall between them (docs/limits.md). The supervisor mounts it, since
// a volume of its pod has another path for each pod, and the kubelet keeps the path that a
// container was given for the life of the pod. It outlives the supervisor for the same reason.
//
// A daemon serves one MIG instance, or the GPUs that are not in MIG mode (NVIDIA, "Multi-Process
// Service"): a node has a supervisor for each, in one process, for the /dev/shm of the process is what
// their clients have.
//
// With Config.Exclusive the GPUs are in EXCLUSIVE_PROCESS mode meanwhile: a program that
// does not go through the daemon then gets no GPU at all, instead of one without a limit.
package mps
