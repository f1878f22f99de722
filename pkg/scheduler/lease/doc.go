// Package lease wraps the lock of a leader election. It reports whether this process leads, and whether it may
// send a binding. A binding lands when the API server writes it. Both kube-scheduler with the plugin and the
// extender of a cluster's own kube-scheduler use this package, because they run in several replicas.
//
// # Invariants
//
//   - If Leads allows a process to send, a binding that it sends then lands, or fails, before another process
//     has the Lease. So when a lead begins, the API server has all bindings of previous leaders.
//   - A process releases the Lease only after all its bindings have been answered or can no longer land.
//
// # Decisions
//
// Another process may acquire the Lease when it has not been renewed for its duration. A binding lands within
// controller.BindDeadline of its arrival, or never. So this process sends nothing in the last seconds of the
// duration, measured by its own clock from the moment at which it sent the last renewal. This rule needs no
// read, and it holds for any delay: after a freeze, the process sees by its clock that it must not send. One
// gap remains: a process may freeze after its last look at the clock, and send the binding when another
// process leads. Then the device plugin, which allocates no device ID twice, gives one of two pods another
// GPU, or rejects it.
//
// During a freeze of the leader, another process may also acquire and release the Lease. The next renewal of
// the frozen process then acquires the Lease again, and client-go reports no loss. But the Lease counts its
// transitions, so Lock detects that a new lead has begun.
//
// client-go releases the Lease when the process exits, or cannot renew the Lease. In both cases it calls
// Update before the duration is over.
package lease
