// Package cmdutil has the common parts of all commands: the flags of the tree, the connection to the
// cluster, arguments, completion, output formats, exit codes and warnings.
//
// # Invariants
//
//   - A command has Options with Complete, Validate and Run, as in kubectl. Complete parses the arguments and
//     usually connects to the cluster, Validate returns the errors in the flags, and Run does the work.
//   - The flags of one command are fields of its Options. The flags of the whole tree are fields of the Factory. The
//     Factory stores no results of a command, except a record of its warnings and of missing rights.
//   - The package reads no environment variable and never exits the process. The main package does both.
//
// # Decisions
//
// Commands that list pods read the namespace only from --namespace. The namespace of the kubeconfig would
// hide pods from users who did not choose it. Commands about one pod default to the namespace of the
// kubeconfig, as kubectl does.
//
// If a command cannot read the cluster's placement policy, it prints a warning and assumes the default.
// Most clusters use the default, and not every user may read Deployments.
package cmdutil
