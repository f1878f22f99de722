// Package doctor checks an installation of gpumem from the objects of its cluster, and names a remedy for
// each fault.
//
// # Invariants
//
//   - Checks lists every check. The documentation, the output and Examine use this table. A check reads
//     only the State and changes nothing.
//   - A kind of object that the caller could not list is in State.Unread, and no check treats its list
//     as empty.
//   - The checks examine the installation, and the command explain examines a single pod. The only
//     exception is the check "pods": it reports pods that bypass the installation, because they endanger
//     the pods that use the installation.
//
// # Decisions
//
// Labels of the chart and the flag --resource-domain identify an installation, because users choose the
// names of releases and namespaces. The MPS daemon has no such flag, so the package assigns it to the
// device plugin of the same release.
//
// A fault is an error if pods do not get their GPU memory, or if it breaks a guarantee. A fault is
// a warning if it may become an error, or if it weakens a safeguard. Workloads younger than MinAge may
// still be starting, so the checks skip them, and a note lists them.
package doctor
