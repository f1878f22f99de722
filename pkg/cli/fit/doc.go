// Package fit has the command fit: whether a pod would fit, on which nodes, and how often.
//
// # Invariants
//
//   - The pod that is asked about is made of limits and annotations and read as any pod is: what fits
//     here is what a pod with them gets.
//   - As many fit as could be bound, one after the other.
//
// # Decisions
//
// The amount is in GiB or with a unit, as people think of it. A pod has to ask in units of its node,
// so a note says how, where that is another number.
package fit
