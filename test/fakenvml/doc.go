// Package fakenvml builds a libnvidia-ml.so.1 that reports the GPUs described in a JSON file,
// and with it a libcuda.so.1 by which programs take memory of them within limits, for tests
// of programs that load NVIDIA's libraries and for clusters without a GPU.
// README.md documents the file; this package has its Go types and builds the library.
package fakenvml
