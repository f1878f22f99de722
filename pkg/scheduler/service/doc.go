// Package service is what gpumem-extender and gpumem-scheduler have in common as processes:
// the flags, the probes and metrics, the last decisions and the page for people, and what is
// looked at from time to time. What kube-scheduler asks is answered elsewhere: by the
// extender's HTTP routes, or by the plugin within kube-scheduler.
//
// # Invariants
//
//   - Both processes have the same flags for the same things, and tell the same metrics,
//     decisions and page of the same cluster.
//   - What people read is served on the loopback alone.
package service
