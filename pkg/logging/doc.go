// Package logging makes the loggers of the binaries: zap, with typed fields, and
// the Kubernetes libraries' own log lines sent the same way.
//
// # Invariants
//
//   - A logger is passed to whoever logs. There is no logger of the process, but
//     for that of klog, which has no other way (BridgeKlog).
//   - A level or a format that nobody knows is an error, with those that there are.
//
// # Decisions
//
// zap and not log/slog: the fields of a line are typed and cost nothing when its
// level is off, which counts in verbs that are asked about thousands of nodes.
//
// Lines are written whole and not sampled: of an error that comes often, the one that
// matters may be the one left out.
package logging
