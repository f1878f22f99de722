// Package cdi describes the node's GPUs to container runtimes, in a file of the Container
// Device Interface, so that a container gets a GPU by its name from any runtime with CDI on.
//
// # Invariants
//
//   - The file is whole at any time, and has the GPUs that the driver had when their list last changed, or the driver was
//     last loaded. Where it cannot be written again, it is left as it was, and describes the GPUs whose device nodes have the
//     same numbers.
//   - Its paths are those of the node, wherever the process sees the driver.
//
// # Decisions
//
// What a container needs of NVIDIA's driver is for NVIDIA's own library to say (package nvcdi of
// the container toolkit). Its hooks are run by the runtime, on the node, by the program that the
// toolkit has there; a hook that toolkits before 1.17.8 lack would keep containers from starting, so
// those that are newer are left out.
//
// The kind is one of gpumem's domain. Under nvidia.com/gpu, another's file for the same names
// would be a conflict, and runtimes refuse both.
package cdi
