// Package published reads which GPUs drivers of dynamic resource allocation publish, from their
// ResourceSlices, and has the names in ours.
//
// # Invariants
//
//   - Of a GPU that several drivers publish one is named, and always the same.
package published
