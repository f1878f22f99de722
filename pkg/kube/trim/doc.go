// Package trim reduces watched objects to the fields that gpumem reads, because a cluster may have very
// many of them. The schedulers and the device plugin share the list of fields.
//
// # Invariants
//
//   - Package api parses the same request and the same holding from a trimmed pod, and package nodefilter
//     reads the same from a trimmed node. Fuzz targets of packages nodeapi and controller check this.
//     Some reads return untrimmed objects, and these must compare as unchanged.
//   - The input is not modified. The results share memory and are read-only.
//
// # Decisions
//
// The schedulers and the device plugin share one list although neither reads all its fields, because
// nobody would notice a field that is missing from a separate list. The device plugin also keeps the
// container statuses of the pods of its node. These would be too many for a scheduler.
package trim
