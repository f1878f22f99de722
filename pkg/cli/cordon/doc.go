// Package cordon has the commands cordon and uncordon: they keep new pods off a GPU, and let them
// onto it again. Drain and defrag cordon by the same functions.
//
// # Invariants
//
//   - The annotation of the node is patched with the resourceVersion that was read: of two who
//     cordon GPUs of one node at the same time none loses what it wrote.
//   - Pods on the GPU are not touched.
//
// # Decisions
//
// A GPU is named by its index, its UUID, or as much of that as no other of the node has.
package cordon
