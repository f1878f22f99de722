// Package overview has the command nodes, which is what the tree does without a command too: a
// line for each node, or each node with its GPUs and the pods on them.
//
// # Invariants
//
//   - What could be read is printed, and the error says that something could not.
//
// # Decisions
//
// The first argument of the tree may be a node or a misspelt command. It is taken for a node, and
// where there is none of that name the command is named that it may stand for.
package overview
