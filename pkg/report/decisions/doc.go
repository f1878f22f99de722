// Package decisions remembers what the extender has answered about pods, and
// what it looked at to come to that.
//
// # Invariants
//
//   - What is remembered is bounded: so many pods, the one that nothing has been
//     decided of for the longest goes first; of each pod the last answer to each
//     verb; of each answer so many nodes.
//   - Nothing is decided by what is remembered, and nothing of it survives the
//     process.
//
// # Decisions
//
// A pod that waits is asked about again and again, by a cluster that waits for it
// with thousands of others. The last answer to each verb tells why it is where it
// is; how often it was asked about is counted.
//
// They are kept in memory, and not written as Events: one for each answer would be
// thousands of requests, and kube-scheduler's own Event has the reasons already.
package decisions
