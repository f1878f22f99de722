// Package published reads which GPUs drivers of dynamic resource allocation publish, from their
// ResourceSlices.
//
// # Invariants
//
//   - Of a GPU that several drivers publish one is named, and always the same.
package published
