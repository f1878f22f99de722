// Package lease wraps the lock of a leader election. It reports whether this process leads, and whether the
// bindings that it sends now land before another process can lead. Both kube-scheduler with the plugin and
// the extender of a cluster's own kube-scheduler use it, because they run in several replicas.
//
// # Invariants
//
//   - A binding that a process sends while Leads allows it lands, or fails, before another process has
//     the Lease. So when a lead begins, the API server has all bindings of previous leaders.
//   - A process releases the Lease only after all its bindings have been answered.
//
// # Decisions
//
// Another process may acquire the Lease when it has not been renewed for its duration. A binding lands within
// controller.BindDeadline of its arrival, or never. So this process sends nothing in the last seconds of the
// duration, measured by its own clock from the moment at which it sent the last renewal. This takes no read,
// and it works whatever has delayed the process: after a freeze, the process finds that too much time has
// passed. One gap remains: a process may freeze after its last look at the clock, and send the binding when
// another process leads. Then the device plugin, which allocates no slot twice, gives one of two pods another
// GPU, or rejects it.
//
// After a freeze, a process may also find that another process has held the Lease and released it meanwhile.
// Its next renewal then acquires the Lease, and kube-scheduler does not exit. The Lease counts its
// transitions, so Lock detects that a new lead has begun.
//
// If somebody deletes the Lease, another process may create it. The previous holder notices at its next
// renewal, within seconds. The new holder has seen the previous Lease, so it sends nothing until the previous
// holder has stopped sending.
//
// A process releases the Lease when it exits. It also does so when it could not renew the Lease, before the
// duration is over. Both cases call Update, which waits for the answers.
package lease
