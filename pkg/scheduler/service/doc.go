// Package service contains the parts that the processes gpumem-extender and gpumem-scheduler share: flags,
// probes, metrics, the decision log, the page, and periodic tasks. The requests of kube-scheduler are handled
// elsewhere: by the extender's HTTP routes, or by the plugin within kube-scheduler.
//
// # Invariants
//
//   - Both processes have the same flags for the same settings, and serve the same metrics, decisions
//     and page.
//   - The decision log and the page are served only on loopback addresses.
package service
