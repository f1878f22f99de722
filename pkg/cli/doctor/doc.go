// Package doctor has the command doctor: it reads the cluster and prints what package pkg/report/doctor
// finds wrong with it.
//
// # Invariants
//
//   - It changes nothing. What cannot be read is a finding.
//   - The exit code is 1 where a finding is an error, and 2 where nothing could be judged.
//
// # Decisions
//
// It waits, with --wait, for what is too young to be judged, once: what is made meanwhile is young
// again, and a note names it.
package doctor
