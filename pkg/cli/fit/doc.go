// Package fit has the command fit, which counts the pods of a given size that fit each node.
//
// # Invariants
//
//   - The command builds a pod from its flags and parses it like any other pod. So the answer holds for
//     a real pod with the same limits and annotations.
//   - The count is the number of pods that could be bound to the node one after the other.
//
// # Decisions
//
// The flag takes GiB, or an amount with a unit, because users think in these. A pod requests units of
// its node. If the number of units differs from the flag, the command prints it in a note.
package fit
