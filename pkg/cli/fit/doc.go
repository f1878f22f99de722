// Package fit has the command fit, which counts the pods of a given size that fit each node.
//
// # Invariants
//
//   - The command builds a pod from its flags and parses that pod like any other pod. So the answer is
//     valid for a real pod with the same limits and annotations.
//   - The count is the number of pods that could be bound to the node one after the other.
//
// # Decisions
//
// The flag --mem takes GiB, or an amount with a suffix such as Mi, because users think in these. A pod
// requests a number of gpumem's units, whose size the node defines. If this number differs from the flag's,
// the command prints the number in a note.
package fit
