// Package daemon has the common parts of the programs that run in a cluster: start and end, the flags for logs
// and for access to the API server, and the errors of flags.
//
// # Invariants
//
//   - A signal cancels the program's context, and the program then returns. Main prints its error to
//     stderr, after the program's name.
//   - Loggers are passed as arguments. The only global logger is klog's, because client-go has no other interface.
//     Options.Start replaces it, so only a main package may call Start, and only once.
//   - An unknown value of a flag is an error that lists the known values.
//
// # Decisions
//
// The logger is zap instead of log/slog: its fields are typed and cost nothing if the level is off. This
// matters in calls that evaluate thousands of nodes.
//
// Logs are not sampled, because sampling could drop the important line of a frequent error.
//
// Objects are transferred as protobuf, which is cheaper to decode than JSON. Lists of pods are long in
// large clusters.
package daemon
