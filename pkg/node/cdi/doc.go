// Package cdi describes the node's GPUs to container runtimes in a file of the Container Device Interface
// (CDI). A container then gets a GPU by name from any runtime with CDI enabled.
//
// # Invariants
//
//   - The file is complete at any time. It contains the GPUs at the last change of their list or the last load of
//     the driver. If the file cannot be rewritten, it stays in use for GPUs whose device nodes still have the
//     same numbers.
//   - A change of the GPUs is delayed by at most 5 seconds while the writer waits for NVML. If NVML hangs, the
//     GPUs in the file stay offered, and other GPUs become unhealthy.
//   - The file contains paths on the node, even if this process sees the driver under other paths.
//
// # Decisions
//
// NVIDIA's library (package nvcdi of the container toolkit) determines the parts of the driver that a container
// needs. The runtime runs the file's hooks on the node with the toolkit's program. A toolkit before 1.18 rejects
// hooks that it does not know (disable-device-node-modification of 1.17.8, update-application-profile of 1.20),
// and would keep containers from starting.
//
// The CDI kind belongs to gpumem's domain. Under nvidia.com/gpu, a second file with the same names would
// conflict, and runtimes reject both files.
package cdi
