// Package closest tells how far a node is from taking a pod that it refuses: it is for people who
// ask why a pod waits. Of many nodes they are shown those that come closest, and what would help there.
//
// # Where to find what
//
// gap.go compares refusals, and says how much one GPU has left. nearmiss.go finds a glob that lets in no GPU, and would if it were
// written a little wider.
//
// # Invariants
//
//   - Nothing is decided here: whether a pod fits, and where, is asked of package placement.
//   - No pods can leave with whom the request fits then and that hold less than Gap says.
//   - All functions are total and without effect.
//
// # Decisions
//
// A Gap is found once for each answer, and kept with it (decide.Refusal): a pod that fits none of
// 5,000 nodes is asked about again and again.
package closest
