// Package cordons reads and writes who has cordoned GPUs of a node, and why. It is for people alone:
// which GPUs are cordoned is in an annotation of its own, see package api.
//
// # Invariants
//
//   - What cannot be read, or was cordoned in another way, has no note, and is no error.
package cordons
