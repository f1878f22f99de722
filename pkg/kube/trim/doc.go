// Package trim keeps of the objects that a watch brings what gpumem reads, and no more: a cluster
// may have very many. The extender's watch and the device plugin's have one list of fields.
//
// # Invariants
//
//   - What is kept says the same as all of it: package api reads the same request and the same
//     holding from both, and package reach the same of a node. Fuzz targets of the two users say so.
//     An object is read in full too, now and then, and must not seem to have changed by that.
//   - The objects themselves are not changed, and what is kept of them may be shared: it is read only.
//
// # Decisions
//
// There is one list for both users, though neither reads all of it: of what a list leaves out the
// reader is not warned. What only one of them can bear, it adds: the device plugin keeps the statuses
// of containers, of the pods of one node; the extender, with those of the cluster, could not.
package trim
