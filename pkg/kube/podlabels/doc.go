// Package podlabels records a pod's GPUs in its labels, for routers that weight pods.
//
// # Invariants
//
//   - The API server accepts every value, whatever name NVML returns for a GPU.
//   - A label that does not apply is absent.
//
// # Decisions
//
// The Binding and the device plugin's corrections write the labels together with the assignment. A
// separate controller would write them late. The labels are off by default, because other objects'
// selectors can match them.
//
// The label assigned-speed is the model's speed times the pod's part of the GPU. If the pod requests
// cores, this is the part of the cores and not of the memory: the limit of cores is enforced, and memory
// does not determine computing time.
package podlabels
