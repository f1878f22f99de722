// Package nvml finds the GPUs of a node and watches their health, through
// NVIDIA's management library.
//
// # Protocol
//
// Run loads the library, reads every GPU, and reads them again at an interval.
// What it knows is there for the asking at any moment (Inventory), with a
// channel that is closed when something newer is; asking never waits for NVML.
//
//	         good probe            XID, failing or late probe, gone
//	unseen ────────────▶ healthy ─────────────────────────────────▶ unhealthy
//	                        ▲    good probes, Config.Recovery in a row   │
//	                        └────────────────────────────────────────────┘
//
// A GPU whose XID asks for a reset, by NVIDIA's catalog, stays unhealthy whatever NVML answers, until the driver is loaded
// again, the machine boots, or a person has it removed from the file Config.Resets.
//
// # Invariants
//
//   - A GPU that was offered once is kept in the inventory, unhealthy when it is
//     gone: a device that vanished from the kubelet's list would take its
//     accounts with it.
//   - A GPU is its UUID. When indexes move, devices keep their slots.
//   - No call of the library is waited for longer than Config.Timeout. One that
//     hangs is left behind, and its like is not started again until it returns. Its answer is used then: a session that
//     opens late is the next one, and a GPU that is slow has the answers of the probe before.
//   - No library, no driver and no GPU are states with a reason, not errors.
//
// # Decisions
//
// NVML is the library that nvidia-smi and DCGM are made of. It is opened when the
// program runs (go-nvml uses dlopen), so that one binary is for nodes with and without
// a GPU; DCGM would be another daemon to install, and nvidia-smi's output is for people.
//
// The library is opened and initialised again when the kernel shows other GPUs or another load of the driver, and, more and
// more rarely, while something is wrong: NVML lists GPUs as they were when it was initialised, and a driver container may
// bring its library later than we start. It is left open while a call hangs in
// it.
//
// A device's capacity is that of its first reading, and the next process keeps to it, as
// the node's inventory tells. The memory that the driver reserves varies by some MiB
// while programs run, and units must not come and go with it: the kubelet would not start
// a container again whose slots are gone. A difference of more than 32 MiB is taken in
// when the process starts, and when a GPU comes back: its driver may be another then. One unit
// less counts as foreign use: no pod gets it, and a container that holds it starts again. So
// is, at any time, another size of the whole memory: what is not there cannot be given.
//
// GPUs that NVSwitches join count as linked each with each, by as many lanes as
// the one has that has fewer. Whether the switches are set up so is not asked:
// where they are not, no choice of GPUs is better than another.
//
// What processes use of a GPU's time is asked for once in each probe, for the time since the
// newest sample of the probe before. NVML has samples only of processes that did something: a
// process without one did nothing. Not so a client of MPS, whose work may be counted as the
// MPS server's (before Volta it is): of one without a sample, nothing is known.
//
// How fast a model is comes with the inventory from here, so that the scheduler,
// the node and all who look on know of one order.
//
// GPUs in MIG mode are left to NVIDIA's own plugin, unless Config.MIG says otherwise: each of their
// instances is then a GPU of its own, with the UUID, the memory and the processes that NVML tells of
// it. Who makes instances is not our affair; one that is gone is unhealthy like a GPU that is gone.
// NVML reports errors by the GPU, with the instance where it knows it: else all of them are unhealthy.
package nvml
