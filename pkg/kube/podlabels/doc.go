// Package podlabels says in labels of a pod which GPUs it has, for routers that weigh pods.
//
// # Invariants
//
//   - All values are what the API server takes, whatever NVML calls a GPU.
//   - A label that is not true is not there.
//
// # Decisions
//
// The labels are written by the Binding and by the device plugin's corrections, as the
// assignment is, and by nothing else: a controller of its own would be late. They are off unless
// asked for, since selectors see labels.
//
// Speed counts cores where a pod asks for some, because these are enforced where memory says
// nothing about time.
package podlabels
