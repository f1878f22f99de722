// Package printers prints what kubectl inspect gpumem shows: tables for people,
// and JSON for programs.
//
// # Invariants
//
//   - Every node, pod and reason prints, whatever it contains. Characters that
//     would steer a terminal or break a table are replaced.
//   - What is not known prints as "?", and not as zero.
//   - The same report prints the same way every time.
//
// # Decisions
//
// Tables print GiB when each unit in them is a whole number of GiB, and else MiB
// throughout: numbers of one row are always of one measure. No number that the
// scheduler counts with is rounded. What is used is measured, and has one
// decimal in GiB. A node whose unit is not known, since its inventory is missing or
// unreadable, shows units ("7u") and counts in no sum.
//
// A GPU stands in the column of its index, so that a gap in the indexes shows
// as one ("-"). With more than four columns, the headers are cut short: lines
// of nodes with eight GPUs should fit a screen.
//
// Colours say nothing that words or marks do not say as well, and are printed
// only where the caller says that a terminal reads them. They are put on after
// the columns are lined up, so that they move none.
package printers
