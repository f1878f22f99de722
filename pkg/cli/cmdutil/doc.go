// Package cmdutil has what the commands of kubectl inspect gpumem share: the flags of the tree,
// the cluster that they lead to, the pod that an argument names, completion, and what is said on
// stderr.
//
// # Invariants
//
//   - A command has Options with Complete, Validate and Run, as kubectl's have. Complete reads the
//     arguments and makes the reader of the cluster, Validate says all that is wrong with the flags
//     at once, Run does the work.
//   - Flags are variables of the Options of one command. The Factory has those of the whole tree,
//     and nothing that a run finds out, but for what it has warned of.
//   - It reads no environment and ends no process: that is the program's.
//
// # Decisions
//
// The namespace is that of the flag alone, where a command lists pods: the one of the kubeconfig
// would hide pods from people who have not asked for it. A command about one pod takes that of the
// kubeconfig too, as kubectl does.
//
// A policy that cannot be read is taken to be the default, with a warning: most clusters have it,
// and not everybody may read Deployments.
package cmdutil
