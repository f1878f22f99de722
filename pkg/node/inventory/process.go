package inventory

import "github.com/gpumem/gpumem/pkg/core/gpu"

// A Part is a GPU or a MIG instance that an MPS daemon serves.
type Part struct {
	UUID   gpu.UUID
	Index  int   // of NVML
	MiB    int64 // the most that a client may have
	Free   int64 // MiB that no program uses
	Closed bool  // the GPU is in MIG mode or not selected, so no client uses it
}

// A Process uses a GPU.
type Process struct {
	PID   int    // on the host
	Bytes uint64 // of the GPU's memory
	SM    *int   // per cent of the time in which the GPU ran its kernels; nil: unknown
}
