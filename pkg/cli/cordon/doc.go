// Package cordon has the commands cordon and uncordon: they keep new pods off a GPU, and let them
// onto it again. Drain and defrag cordon by the same functions.
//
// # Invariants
//
//   - The annotation of the node is patched with the resourceVersion that was read: of two who
//     cordon GPUs of one node at the same time none loses what it wrote.
//   - Pods on the GPU are not touched.
//   - Which GPUs are cordoned is in an annotation of its own, as gpumem 0.1 reads and writes it. Who
//     cordoned them and why is in another, for people: of a GPU that is not cordoned it says nothing,
//     and the next cordon or uncordon of the node drops that. What gpumem 0.1 uncordons and cordons
//     again has the author of before.
//
// # Decisions
//
// A GPU is named by its index, its UUID, or as much of that as no other of the node has.
package cordon
