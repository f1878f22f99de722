// Package mps runs NVIDIA's MPS control daemon on a node, and reports whether the daemon limits its clients.
//
// # Protocol
//
//	           start            answers, settings taken, a client of some GPU was limited
//	ended ─────────────▶ starting ───────────────────▶ healthy
//	  ▲                     │                             │ a query fails
//	  │ exits, or MaxFailures queries in a row fail       ▼
//	  └─────────────────────┴──────────────────────── not healthy
//
// Supervisor starts nvidia-cuda-mps-control in the foreground. It sends commands as documented for
// administrators, to the standard input of a second process of the same program (NVIDIA, "Multi-Process
// Service"), and checks every reply.
//
// Client reads the status from a unix socket, which refuses connections once the supervisor has ended. The
// supervisor's directory contains:
//
//	<dir>/pipe         CUDA_MPS_PIPE_DIRECTORY of daemon and clients
//	<dir>/clients      the same directory, read-only, for clients
//	<dir>/shm          /dev/shm of the clients, which therefore need not share the host's IPC namespace
//	<dir>/MIG-…/       the daemon of a MIG instance, with all of these except shm
//	<dir>/log          CUDA_MPS_LOG_DIRECTORY
//	<dir>/status.sock  the supervisor's status
//	<dir>/modes.json   the original compute modes, while they are changed
//
// # Invariants
//
//   - A daemon serves the GPUs that answer at its start. While the daemon has not limited any client on one of
//     them, clients can use the others.
//   - The supervisor restores the original compute modes at its end. If it was killed, the next supervisor
//     restores them.
//   - Clients can neither remove nor replace the daemon's socket, because they see its directory read-only. The
//     supervisor queries the daemon through that read-only directory. If NVIDIA's tool cannot use a read-only
//     directory, the supervisor uses the writable one, and only the probe shows that clients can connect.
//   - The clients' files in /dev/shm have a bounded total size and are not executable. The supervisor removes them
//     once no container remains that could have created them.
//   - A supervisor that has to end reports that at once, waits for clients to end (Config.Drain), and then ends the
//     daemon.
//
// # Decisions
//
// The supervisor runs in a DaemonSet separate from the device plugin. When the daemon ends, all of its clients'
// programs end too, and an update of the plugin must not cause that. For the same reason, administrators update the
// supervisor's DaemonSet manually (OnDelete).
//
// A client's limits are in its environment, which the device plugin sets for each container. The daemon's default
// limit is all memory that the GPU offers to pods. A container without a limit in its environment gets the default,
// and a client can only lower the default. gpumem does not use the interface of newer drivers (MPS v3), in which the
// daemon has the limits: since driver 615, enforcement level kernel limits memory without a daemon.
//
// The probe (package probe) is a process, not a container. It verifies the daemon, its server, and the effect
// of a limit. It runs once per start of a daemon, because it costs a CUDA context.
//
// One server serves the users of all containers (-multiuser-server). With one server per user, containers of a
// second user would wait until the first user's containers have ended. If the daemon refuses the option, the
// supervisor starts the daemon without it (type trial).
//
// All clients of a node share one /dev/shm, in which daemon and clients find each other by name. Its files are
// therefore not isolated between clients (docs/limits.md). The supervisor mounts this file system itself. A volume of
// the supervisor's pod would have another path for each such pod, but a client's container keeps one path for the
// lifetime of its own pod. For the same reason, the mount outlives the supervisor.
//
// A daemon serves one MIG instance, or all GPUs that are not in MIG mode (NVIDIA, "Multi-Process Service"). The
// supervisors of a node run in one process, which shares /dev/shm with their clients.
//
// With Config.Exclusive, the GPUs are in EXCLUSIVE_PROCESS mode while the supervisor runs. A program that
// bypasses the daemon then gets no GPU, instead of a GPU without a limit.
package mps
