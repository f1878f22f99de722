// Package inspect makes a report of who holds what GPU memory, and prints it.
//
// # Invariants
//
//   - The numbers are those of placement.Node, which the scheduler decides on.
//     Nothing is computed a second time from annotations.
//   - What is not known is not printed as zero: requested amounts are absent
//     from JSON, and "?" in a table, when the pods could not be listed.
//   - A report prints the same way every time: nodes, GPUs and pods are sorted.
//   - Every node, pod and reason prints, whatever it contains. Characters that
//     would steer a terminal or break a table are replaced.
//
// # Decisions
//
// The report comes first and printers are functions of it, so that what people
// read and what programs read (JSON) cannot differ. The JSON is versioned by
// apiVersion; fields are added without a new version, not renamed or removed.
//
// JSON carries each amount in units, which pods ask in, and in MiB, which can
// be added up over nodes. Tables print GiB when each unit in them is a whole
// number of GiB, and else MiB throughout: numbers of one table are always of
// one measure, and no number is rounded. A node whose unit nobody knows, since
// its inventory is missing or unreadable, shows units and counts in no sum.
//
// A GPU stands in the column of its index, so that a gap in the indexes shows
// as one ("-"). With more than four columns, the headers are cut short: lines
// of nodes with eight GPUs should fit a screen.
//
// Totals contain unhealthy GPUs, and a GPU that has given away more than it
// offers shows that: "20/16". No number is clamped.
//
// Why a pod waits is asked once for each distinct request, not for each pod:
// the pods that wait mostly come from few templates, and a cluster has
// thousands of nodes.
//
// There are no colours. What they would say is said in words or by a mark.
package inspect
