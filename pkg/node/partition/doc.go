// Package partition sets and reads what control groups may have of the GPUs' memory, as the driver
// enforces it (NVIDIA, "MPS v3 Memory Partitioning"; driver 615).
//
// # Decisions
//
// The calls are those of NVML that go-nvml 0.13.3-1 does not have. They are looked up in the library, and
// are an error with a library that has none. One call at a time: one that hangs in the driver is left
// behind, and no other is made.
package partition
