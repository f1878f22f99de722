// Package doctor has the command doctor, which reads the cluster and prints the findings of package
// pkg/report/doctor.
//
// # Invariants
//
//   - The command changes nothing. A note lists the kinds of objects that could not be listed.
//   - The exit code is 1 if a finding is an error, and 2 if nothing could be checked.
//   - For a user who may read only one namespace, the command checks the pods there.
//
// # Decisions
//
// With --wait, the command waits once, until the present workloads are old enough. A note lists
// workloads that were created meanwhile.
package doctor
