// Package inspect makes a report of who holds what GPU memory, and why pods wait.
// Package printers prints it.
//
// # Invariants
//
//   - The numbers are those of placement.Node, which the scheduler decides on.
//     Nothing is computed a second time from annotations.
//   - Where a pod fits is what decide.Decide says, by the cluster's policy, which is
//     among the facts. No policy is assumed here.
//   - What is not known is not zero: requested amounts are absent when the pods
//     could not be listed.
//   - A report is the same every time: nodes, GPUs and pods are sorted.
//
// # Decisions
//
// The report comes first and printers are functions of it, so that what people
// read and what programs read (JSON) cannot differ. The JSON is versioned by
// apiVersion; fields are added without a new version, not renamed or removed. It
// carries each amount in units, which pods ask in, and in MiB, which can be added
// up over nodes.
//
// Totals contain unhealthy GPUs, and a GPU that has given away more than it
// offers shows that. No number is clamped.
//
// Why a pod waits is asked once for each distinct request, and what it says of
// nodes, not for each pod: the pods that wait mostly come from few templates, and
// a cluster has thousands of nodes.
//
// A pod does not fit where it may not go, however much is free there. Which nodes
// those are, and why, comes in with the facts: it takes the objects of Kubernetes
// to tell, and package reach. A node that would take it but for that, or but for GPUs that are unhealthy or
// cordoned, comes closest, before one that is full; one that the pod's own spec
// keeps it off comes last.
package inspect
