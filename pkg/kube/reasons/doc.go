// Package reasons makes the sentences that people read of what the core decides: why a pod does
// not go to a node, and why it gets no slots there. Events, logs, metrics and commands show them.
//
// # Invariants
//
//   - The core returns values, and no sentences. What follows from a refusal follows from these
//     values: no program compares or cuts what this package returns.
//   - A sentence is made of a value alone, so it is the same wherever it is shown.
//   - Each sentence has a row in docs/troubleshooting.md, docs/extender.md or
//     docs/choosing-gpus.md. A test holds this (test/messages_test.go).
//
// # Decisions
//
// Cores are "per cent", never "%": kube-scheduler's event would not show the sign.
package reasons
