// Package printers prints reports of package inspect as tables, and defines the rows of lists.
//
// # Invariants
//
//   - Every node, pod and reason can be printed, whatever it contains. Characters that control a
//     terminal or break a table are replaced.
//   - An unknown value prints as "?", not as zero.
//   - The same report always prints the same text.
//
// # Decisions
//
// A table prints GiB if every unit in it is a whole number of GiB, and else MiB, so its numbers have one
// measure. No number that the scheduler uses is rounded. Used memory is measured, and has one decimal in
// GiB. A node without a readable inventory has no known unit: it prints in units ("7u"), and no sum
// includes it.
//
// A GPU is in the column of its index, so that a gap in the indexes is visible ("-").
//
// Colours repeat what words or marks say. The package prints them only if the caller reports a terminal,
// and adds them after the alignment of columns, so they do not affect it.
package printers
