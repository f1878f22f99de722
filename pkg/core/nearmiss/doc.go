// Package nearmiss measures the distance of a node from taking a request that it refuses. The answers to
// "why does my pod wait" use it to show the closest of many nodes, and the change that would help there.
//
// gap.go compares refusals and computes the free memory of GPUs. nearmiss.go finds globs that match no
// GPU and would match one with a wildcard.
//
// # Invariants
//
//   - The package decides nothing: package placement decides whether and where a pod fits.
//   - A Gap is a lower bound: if pods with less memory than Gap.lack leave the node, the request still
//     does not fit.
//   - All functions are total and have no side effects.
//
// # Decisions
//
// A Gap is computed once per decision and stored in decide.Refusal, because a pod that fits none of 5,000
// nodes is evaluated again and again.
package nearmiss
