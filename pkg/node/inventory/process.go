package inventory

// Process is one that uses a GPU.
type Process struct {
	PID   int    // on the host
	Bytes uint64 // of the GPU's memory
	SM    *int   // per cent of the time in which the GPU ran kernels of it; nil: not known
}
