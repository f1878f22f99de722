// Package overview has the command nodes, which the root command runs too. It prints a line for each
// node or, with --details, each node with its GPUs and their pods.
//
// # Invariants
//
//   - If a part of the cluster cannot be read, the command prints the rest and returns an error.
//
// # Decisions
//
// The first argument of the root command may be a node or a misspelt command. The root command treats the
// argument as a node and, if no such node exists, suggests commands with a similar name.
package overview
