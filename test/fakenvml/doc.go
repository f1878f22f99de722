// Package fakenvml builds a libnvidia-ml.so.1 that reports the GPUs described in a JSON file,
// for tests of programs that load NVIDIA's library and for clusters without a GPU.
// README.md documents the file; this package has its Go types and builds the library.
package fakenvml
