// Package nvml probes the GPUs of a node and their health through NVIDIA's management library (NVML), and sets
// GPU memory limits of control groups (Limits).
//
// # Protocol
//
// Run loads the library and reads every GPU at an interval. Inventory never waits for NVML. It returns the latest
// state, and a channel that Run closes when a newer state exists.
//
//	         good probe            XID, failing or late probe, gone
//	unseen ────────────▶ healthy ─────────────────────────────────▶ unhealthy
//	                        ▲    good probes, Config.Recovery in a row   │
//	                        └────────────────────────────────────────────┘
//
// After an XID (NVIDIA's error code) for which NVIDIA's catalog requires a reset, the GPU stays unhealthy, even if
// NVML answers normally, until the driver is reloaded, the machine boots, or an administrator removes the GPU from
// the file Config.Resets.
//
// # Invariants
//
//   - A GPU that was once offered stays in the inventory, and becomes unhealthy when it disappears. If a device
//     vanished from the kubelet's list, its allocations would vanish too.
//   - The UUID identifies a GPU. When indexes change, devices keep their slots (the IDs of their units).
//   - No caller waits for the library longer than Config.Timeout. The prober abandons a hanging call, and repeats the
//     call only after the hanging one has returned. Late answers are used: a session that opens late becomes the next
//     session, and if a GPU does not answer a probe in time, the probe uses the GPU's late answer to the previous
//     one. Type Machine, for the MPS supervisor, abandons calls in the same way (Bounded), and sets a compute mode
//     only after the late call for the previous mode has returned.
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
// A device keeps the capacity of its first reading. After a restart, the prober reads that capacity from the node's
// inventory. The driver's reserve varies by some MiB while programs run. Units must not appear and disappear with the
// reserve: the kubelet would not restart a container whose slots are gone. When the process starts or a GPU recovers,
// the driver may have changed. Only then does a difference of more than 32 MiB change the capacity. If the GPU lost
// exactly one unit, the unit stays in the capacity and counts as foreign use: no new pod gets the unit, and a
// container that has it can restart. A change of the total memory changes the capacity at any time.
//
// GPUs behind NVSwitches count as linked pairwise, with the lanes of the GPU that has fewer. The prober does
// not verify the switches' configuration: if it is missing, no choice of GPUs is better than any other.
//
// Each probe reads the GPU time of processes since the newest sample of the previous probe. NVML has samples only
// of active processes, so a process without a sample was idle. Clients of MPS are an exception: NVML may count
// their work as the MPS server's, and always does so before Volta. Without a sample, the GPU time of a client is
// unknown.
//
// The inventory contains the relative speed of each model, so that the scheduler, the node and the CLI rank models
// in the same order.
//
// By default, NVIDIA's own plugin serves GPUs in MIG mode. With Config.MIG, each MIG instance counts as a GPU, with
// the UUID, memory and processes that NVML reports. An instance that disappears is unhealthy, like a GPU. NVML
// reports errors by GPU, and names the instance if it can. After an error without an instance, all instances of the
// GPU are unhealthy.
package nvml
