// Package gates reads which of Kubernetes' feature gates a program has off, from its command.
//
// # Invariants
//
//   - A gate that its command does not name is as it comes, and is not among those that are off.
package gates
