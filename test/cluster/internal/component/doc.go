// Package component builds what a test cluster is made of, from pinned Go
// modules and from C in this repository, and keeps the results.
//
// The result of a build lies in a folder named by a hash of everything that
// made it: the recipe, the sources and go.sum, the compiler. A build works in
// a folder beside it, which is renamed when it is complete, so that a folder
// that exists is good and is never written again.
package component
