// Package cli builds the command tree of kubectl inspect gpumem.
//
// # Invariants
//
//   - Imports point in one direction: this package imports the command packages, the command packages
//     import cmdutil and listing, and those two import cluster, which reads the API server. The commands
//     drain and defrag also import the package cordon, because both cordon GPUs. No other command package
//     imports a command package.
//   - Only cordon, uncordon, drain and defrag write to the cluster, and defrag only with --apply.
//
// # Decisions
//
// Tests run the whole tree (package clirun), because many faults are in the combination of the tree's
// flags with the flags of a command. The tests of all commands are in this package, because each test
// binary that links client-go costs 4 seconds of processor time.
package cli
