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
// If the pod requests cores, its speed is in proportion to its cores and not to its memory: the limit of
// cores is enforced, and memory does not determine computing time.
package podlabels
