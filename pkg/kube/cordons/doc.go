// Package cordons reads and writes the authors and reasons of a node's cordons, for display. The list of
// cordoned GPUs is in a separate annotation, which package api parses. A malformed or missing note is
// not an error.
package cordons
