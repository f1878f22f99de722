// Package lists has the commands gpus, pods and top: GPUs, pods, and what pods use, a row for each.
//
// # Invariants
//
//   - What is used is what the device plugin of the node measured, and what is allocated what the
//     scheduler counts. They are read apart, and one of them is printed without the other.
//   - A name that no pod has is a problem that is named.
//
// # Decisions
//
// pods and top are one list with other columns: who asks what a pod has, and who asks what it
// uses, name and select pods the same way.
package lists
