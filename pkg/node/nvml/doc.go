// Package nvml probes the GPUs of a node and their health through NVIDIA's management library (NVML), and sets
// GPU memory limits of control groups (Limits).
//
// # Protocol
//
// Run loads the library and reads every GPU at an interval. Inventory returns the latest state at once, with a
// channel that is closed when a newer one exists. It never waits for NVML.
//
//	         good probe            XID, failing or late probe, gone
//	unseen ────────────▶ healthy ─────────────────────────────────▶ unhealthy
//	                        ▲    good probes, Config.Recovery in a row   │
//	                        └────────────────────────────────────────────┘
//
// After an XID for which NVIDIA's catalog requires a reset, the GPU stays unhealthy, even if NVML answers
// normally, until the driver is reloaded, the machine boots, or an administrator removes the GPU from the file
// Config.Resets.
//
// # Invariants
//
//   - A GPU that was once offered stays in the inventory, and becomes unhealthy when it disappears. If the
//     device vanished from the kubelet's list, the allocations on it would vanish too.
//   - The UUID identifies a GPU. When indexes change, devices keep their slots.
//   - No caller waits for the library longer than Config.Timeout. The prober abandons a hanging call, and does
//     not repeat it until it returns. It uses late answers: a session that opens late becomes the next session,
//     and for a slow GPU the answers of the previous probe count. Machine does the same (Bounded), and sets a
//     compute mode only after a late call has set the one before.
//   - The prober calls a function only if the library has its symbol. Calling a missing symbol ends the
//     process.
//   - A missing library, driver or GPU is a state with a reason, not an error.
//
// # Decisions
//
// nvidia-smi and DCGM use NVML too. go-nvml opens the library at run time (dlopen), so one binary runs on nodes
// with and without a GPU. DCGM would need a second daemon, and nvidia-smi prints for people.
//
// The prober reopens the library when the kernel shows other GPUs or a reloaded driver, and at growing
// intervals while a GPU or the library fails. NVML lists the GPUs that existed at its initialisation, and a
// driver container may install its library after this process has started. The library stays open while a call
// hangs in it.
//
// A device keeps the capacity of its first reading. After a restart, the node's inventory restores it. The
// memory that the driver reserves varies by some MiB while programs run, and units must not appear and
// disappear with it: the kubelet would not restart a container whose slots are gone. A difference of more than
// 32 MiB counts when the process starts, and when a GPU recovers, because its driver may have changed. If one
// unit is missing, it counts as foreign use: no new pod gets it, and a container that has it can restart. A
// change of the total memory counts at any time.
//
// GPUs behind NVSwitches count as linked pairwise, with the lanes of the GPU that has fewer. The prober does
// not verify the switches' configuration: if it is missing, no choice of GPUs is better than any other.
//
// Each probe reads the GPU time of processes since the newest sample of the previous probe. NVML has samples
// only of active processes, so a process without a sample was idle. Clients of MPS are an exception, because
// their work may count as the MPS server's (before Volta it does): without a sample, their time is unknown.
//
// The inventory contains the relative speed of each model, so that scheduler, node and views use the same
// order.
//
// NVIDIA's own plugin serves GPUs in MIG mode. With Config.MIG, each MIG instance counts as a GPU, with the
// UUID, memory and processes that NVML reports. An instance that disappears is unhealthy, like a GPU. NVML
// reports errors by GPU, and names the instance if it can. Otherwise all instances of the GPU are unhealthy.
package nvml
