// Package inspect builds reports: the GPU memory of a cluster by node, GPU and pod, and the reasons why
// pods wait. Package printers prints a report.
//
// # Invariants
//
//   - All amounts come from placement.Node, which is also the input of the scheduler's decisions. The
//     package itself parses no annotations.
//   - decide.Decide determines which nodes a pod fits, by the cluster's policy. Facts has the policy, and
//     the package assumes no default.
//   - An unknown amount is absent, and not zero: if the pods could not be listed, a report has no
//     requested amounts.
//   - Reports are deterministic: nodes, GPUs and pods are sorted.
//
// # Decisions
//
// Printers are functions of a report, so the tables for people and the JSON for programs cannot differ.
// The field apiVersion is the version of the JSON. Within a version, fields are added, but not renamed
// or removed. The JSON has each amount in units, which pods request, and in MiB, which programs can add
// up over nodes.
//
// Totals include unhealthy GPUs. No number is clamped, so an over-committed GPU shows more requested
// memory than capacity.
//
// Most waiting pods come from few templates, and a cluster has thousands of nodes. So the package
// evaluates the nodes once for all pods with the same request and the same constraints on nodes.
//
// A pod does not fit a node that refuses it, however much memory is free. Package nodefilter derives
// these refusals from objects of Kubernetes, and Facts contains them. NodeResult.Compare orders the nodes
// by their obstacle. Nodes whose only obstacle is a refusal, or an unhealthy or cordoned GPU, precede full
// nodes. Nodes that the pod's own spec excludes come last.
package inspect
