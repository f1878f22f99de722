// Package reasons renders the core's refusals as messages for people: why a pod cannot go to a node, and
// why it gets no slots there. Events, logs, metrics and commands show these messages.
//
// # Invariants
//
//   - The core returns values instead of messages. Programs act on these values, and never compare or
//     parse the messages.
//   - A message depends only on its value, so it is the same everywhere.
//   - Each message has a row in docs/troubleshooting.md, docs/extender.md or docs/choosing-gpus.md. The
//     test test/messages_test.go checks this.
//
// # Decisions
//
// Messages contain "per cent" instead of "%", because kube-scheduler's events drop the sign.
package reasons
