// Package cordon has the commands cordon and uncordon, which keep new pods off a GPU and admit them
// again. The commands drain and defrag use the package's functions to cordon GPUs.
//
// # Invariants
//
//   - A patch contains the resourceVersion of the node that the command read. The API server therefore
//     rejects the patch after a concurrent change, and the command retries. No change is lost.
//   - A cordon does not affect the pods on the GPU.
//   - One annotation lists the cordoned GPUs, in the form that gpumem 0.1 reads and writes. A second annotation has
//     the author and the reason of each cordon. Its entries for GPUs without a cordon have no meaning, and the next
//     change of the node's cordons drops them. gpumem 0.1 does not change the second annotation: if it uncordons a
//     GPU and cordons it again, the old author remains.
//
// # Decisions
//
// An argument identifies a GPU by its index, its UUID, or a unique prefix of the UUID.
package cordon
