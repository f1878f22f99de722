// Package trim reduces watched objects to the fields that gpumem reads, because a cluster may have very
// many of them. The extender and the device plugin share the list of fields.
//
// # Invariants
//
//   - Package api parses the same request and the same holding from a trimmed pod, and package reach
//     reads the same from a trimmed node. Fuzz targets of both users check this. Objects are also read
//     untrimmed sometimes, and must compare as unchanged then.
//   - The input is not modified. The results share memory and are read-only.
//
// # Decisions
//
// Both users share one list although neither reads all fields, because a field that is missing from a
// list goes unnoticed. A user adds fields that only it can afford: the device plugin keeps the
// container statuses for the pods of its node, which would be too many for the extender.
package trim
