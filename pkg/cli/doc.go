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
// The tests run commands through the tree, as people do (package clirun), because many faults are
// in the combination of the tree's flags with a command's. The tests of all commands are in this
// package, because each test program that links client-go costs 4 seconds of processor time.
package cli
