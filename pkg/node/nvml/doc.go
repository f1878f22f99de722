// Package nvml finds the GPUs of a node and watches their health, and limits the GPU memory of control groups (Limits), through
// NVIDIA's management library.
//
// # Protocol
//
// Run loads the library, reads every GPU, and reads them again at an interval. Inventory returns the last state at once,
// with a channel that is closed when there is a newer one; it never waits for NVML.
//
//	         good probe            XID, failing or late probe, gone
//	unseen ────────────▶ healthy ─────────────────────────────────▶ unhealthy
//	                        ▲    good probes, Config.Recovery in a row   │
//	                        └────────────────────────────────────────────┘
//
// A GPU whose XID asks for a reset, by NVIDIA's catalog, stays unhealthy whatever NVML answers, until the driver is loaded
// again, the machine boots, or a person removes it from the file Config.Resets.
//
// # Invariants
//
//   - A GPU that was offered once stays in the inventory, unhealthy when it is gone: if a device vanished from the kubelet's
//     list, its accounts would vanish with it.
//   - A GPU is its UUID. When indexes move, devices keep their slots.
//   - Nobody waits for a call of the library longer than Config.Timeout. A call that hangs is left behind, and its like is not
//     started again until it returns. Its answer is used then: a session that opens late is the next one, and a slow GPU has the
//     answers of the probe before.
//   - A function is called only when the library has its symbol: to call a missing one ends the process.
//   - No library, no driver and no GPU are states with a reason, not errors.
//
// # Decisions
//
// nvidia-smi and DCGM are made of NVML. go-nvml opens it at run time (dlopen), so one binary runs on nodes with and without
// a GPU. DCGM would be another daemon to install, and nvidia-smi's output is for people.
//
// The prober opens and initialises the library again when the kernel shows other GPUs or another load of the driver, and, at
// growing intervals, while something is wrong: NVML lists GPUs as they were when it was initialised, and a driver container may
// bring its library later than we start. The library stays open while a call hangs in it.
//
// A device keeps the capacity of its first reading, and the next process keeps it by the node's inventory. The memory that the
// driver reserves varies by some MiB while programs run, and units must not come and go with it: the kubelet would not start
// a container again whose slots are gone. A difference of more than 32 MiB counts when the process starts, and when a GPU
// comes back, because its driver may be another then. One unit less counts as foreign use: no pod gets it, and a container that
// has it starts again. Another size of the whole memory counts at any time.
//
// GPUs that NVSwitches join count as linked each with each, by as many lanes as the GPU with fewer has. The prober does not
// check the switches' setup: where it is missing, no choice of GPUs is better than another.
//
// Each probe reads the time of processes on a GPU once, since the newest sample of the probe before. NVML has samples only of
// processes that did something: a process without one did nothing. Clients of MPS are an exception, because their work may
// count as the MPS server's (before Volta it does): without a sample, their time is unknown.
//
// The speed of a model is part of the inventory, so that the scheduler, the node and the views use one order.
//
// GPUs in MIG mode are left to NVIDIA's own plugin. With Config.MIG, each of their instances counts as a GPU, with its
// UUID, memory and processes by NVML; one that is gone is unhealthy like a GPU that is gone. NVML reports errors by
// the GPU, with the instance where it knows it: else all of them are unhealthy.
package nvml
