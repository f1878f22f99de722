// Package inventory passes the node's inventory from package nvml, which probes the GPUs, to the parts that
// offer them. Intermediate stages change the inventory on the way.
//
// # Invariants
//
//   - The caller owns a returned inventory: later updates do not change it.
//   - The returned channel is closed when the inventory changes. Setting an equal inventory does not close it.
//
// # Decisions
//
// The parts of the device plugin form a chain (nvml, cdi, coexist, enforcement, and then the plugin and the
// writer of the node's annotation). Each is a Source for the next. There are no callbacks and no polls: a reader
// gets the latest state and waits on the channel, so a slow reader skips states and delays no other. A queue of
// changes would require every reader to consume all of it, including readers that start late.
package inventory
