// Package inventory passes on which GPUs a node offers: from package nvml, which
// finds them, to those who hand them out. Who stands between hears from the one
// before, changes what it has heard, and tells the next.
//
// # Invariants
//
//   - An answer is the reader's own: nothing that is set later changes it.
//   - The channel that comes with an answer is closed when there is another one,
//     and not before: what is set again wakes no one.
//
// # Decisions
//
// The parts of the device plugin stand in a line (nvml, coexist, enforcement, and
// then the plugin and the writer of the node's annotation), each a Source for the
// next. No one polls, and no one calls back: a reader takes the last state and
// waits for the channel, so a slow one skips states and holds up none. A queue of
// changes would have to be read to its end by everybody, those that start late too.
package inventory
