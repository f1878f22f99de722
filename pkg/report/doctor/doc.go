// Package doctor checks an installation of gpumem, by the objects of its cluster, and names the remedy for each fault.
//
// # Invariants
//
//   - Checks lists every check: documentation, output and Examine use that table. A check reads a State and nothing else,
//     and changes nothing.
//   - An object kind that the caller could not list is in State.Unread, and no check takes its list for an empty one.
//   - The checks concern the installation. The command explain answers for a single pod. The check "pods" is the one exception:
//     it counts pods that bypass the installation, because they endanger the pods that use it.
//
// # Decisions
//
// Labels of the chart and the flag --resource-domain identify an installation, because names of releases and namespaces
// are free. The MPS daemon has no such flag, so it belongs to the device plugin of its release.
//
// An error keeps pods from their GPU memory, or breaks a promise about it. A warning will, or weakens a safeguard. Workloads
// younger than Settle may still be starting: the checks skip them, and a note lists them.
package doctor
