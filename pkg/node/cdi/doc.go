// Package cdi describes the node's GPUs to container runtimes in a file of the Container Device Interface
// (CDI). A container then gets a GPU by name from any runtime with CDI enabled.
//
// # Invariants
//
//   - The file is complete at any time. It contains the GPUs at the last change of their list or the last load
//     of the driver. If it cannot be rewritten, it stays in use for GPUs whose device nodes still have the same
//     numbers.
//   - News of the GPUs waits for NVML at most 5 seconds. If NVML hangs, the GPUs in the file stay offered, and
//     other ones become unhealthy.
//   - Its paths are paths on the node, wherever this process sees the driver.
//
// # Decisions
//
// NVIDIA's library (package nvcdi of the container toolkit) determines the parts of the driver that a container
// needs. The runtime runs its hooks on the node with the toolkit's program. A hook that toolkits before 1.17.8
// lack would keep containers from starting, so newer hooks are omitted.
//
// The kind belongs to gpumem's domain. Under nvidia.com/gpu, a second file with the same names would conflict,
// and runtimes reject both.
package cdi
