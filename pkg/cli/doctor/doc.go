// Package doctor has the command doctor: it reads the cluster and prints the findings of package pkg/report/doctor.
//
// # Invariants
//
//   - It changes nothing. A note lists the kinds of objects that could not be listed.
//   - The exit code is 1 if a finding is an error, and 2 if nothing could be checked.
//   - A user who may read one namespace gets the check of the pods there.
//
// # Decisions
//
// With --wait it waits once for workloads that are too young. A note lists those that were created meanwhile.
package doctor
