// Package printers prints reports of package inspect as tables, and defines the rows of lists.
//
// # Invariants
//
//   - The package prints every node, pod and reason, whatever its text contains. It replaces characters
//     that control a terminal or break a table.
//   - An unknown value prints as "?", not as zero.
//   - The same report always prints the same text.
//
// # Decisions
//
// A table prints GiB if every node's unit is a whole number of GiB, and else MiB, so all its amounts have one
// measure. The package rounds no number that the scheduler uses; used memory, which is measured, has one decimal in
// GiB. The size of a unit is unknown on a node without a readable inventory: the package prints the node's amounts
// in units ("7u"), and no sum includes them.
//
// A GPU is in the column of its index, so that a gap in the indexes is visible ("-").
//
// A colour repeats the meaning of a word or mark. The package prints colours only if the caller reports
// a terminal, and adds them after it has aligned the columns, so colours do not affect the widths.
package printers
