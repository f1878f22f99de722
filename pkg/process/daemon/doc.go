// Package daemon is what the programs that run in a cluster have in common: how
// they begin and end, and the flags by which they log and reach the API server.
//
// # Invariants
//
//   - A program that has to end has its context ended, and ends by itself. What
//     went wrong is said on stderr, with the program's name before it.
//   - A logger is passed to those who log. There is no logger of the process, but
//     for that of klog, which has no other way (BridgeKlog).
//   - A value that is not known is an error, with those that there are.
//
// # Decisions
//
// zap and not log/slog: the fields of a line are typed and cost nothing when its
// level is off, which counts in verbs that are asked about thousands of nodes.
//
// Lines are written whole and not sampled: of an error that comes often, the one that
// matters may be the one left out.
//
// Objects travel as protobuf, which is cheaper to read than JSON: the list of a large
// cluster's pods is long.
package daemon
