// Package partition sets and reads what control groups may have of the GPUs' memory, as the driver
// enforces it (NVIDIA, "MPS v3 Memory Partitioning"; driver 615).
//
// # Decisions
//
// Each call initialises NVML anew: it may be in use already, and counts its users. Calling a function that an older library
// lacks ends the process, so the library is asked for it first. One call at a time: one that hangs in the driver is left
// behind, and no other is made until it returns. Its effect may come late: package enforcement undoes it.
package partition
