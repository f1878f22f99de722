// Package cli is the tree of commands of kubectl inspect gpumem.
//
// # Invariants
//
//   - Arrows point one way: this package imports a package for each command or two, these import
//     cmdutil and listing, and these cluster, which reads. Of the commands drain and defrag import
//     another, cordon, since both cordon GPUs; no other command knows of one.
//   - Only cordon, drain and defrag write to the cluster, and defrag only with --apply.
//
// # Decisions
//
// A command is tested through the tree, as people run it (package clirun): how flags of the tree
// and of a command go together is half of what can break.
package cli
