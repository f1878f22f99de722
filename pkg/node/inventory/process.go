package inventory

import "github.com/gpumem/gpumem/pkg/core/gpu"

// Part is a GPU or MIG instance that an MPS daemon serves.
type Part struct {
	UUID   gpu.UUID
	Index  int   // NVML's index
	MiB    int64 // maximum memory of a client
	Free   int64 // MiB that no program uses
	Closed bool  // the GPU is in MIG mode or not selected, so it has no clients
}

// Process is a process that uses a GPU.
type Process struct {
	PID   int    // on the host
	Bytes uint64 // of GPU memory
	SM    *int   // percentage of time in which the GPU ran its kernels; nil if unknown
}
