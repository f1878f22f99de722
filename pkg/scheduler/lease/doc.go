// Package lease tells a process whether it decides alone. Both kube-scheduler with the plugin
// and the extender of a cluster's own kube-scheduler run in several replicas.
//
// # Invariants
//
//   - What is sent while Leads says so has landed, or never will, before another has the Lease.
//     So all that the one before has bound is in the API server when a lead begins.
//   - The Lease is given back when all that was sent is answered.
//
// # Decisions
//
// Another may take the Lease when it has not been renewed for its duration. A binding lands
// within controller.BindDeadline of its arrival, or never. So this process sends nothing in the
// last seconds of the duration, by its own clock and from the moment at which the last renewal
// was sent. No read is needed for that, and it holds whatever has kept the process up: one that
// was frozen finds that too much time has passed. What is left is a process that is frozen
// between its last look at the clock and the sending, and goes on when another leads; then the
// device plugin, which gives nothing twice, finds another GPU for one of two pods or refuses it.
//
// A process that was frozen can find the Lease given back by another that has had it meanwhile, and
// take it as it renews it: kube-scheduler does not end then. The Lease counts how often it has
// changed hands, and by that another lead begins.
//
// Where the Lease was deleted by hand, the process that had it finds another there when it renews it
// next, within seconds. So the other, which has seen the first one's Lease, sends nothing until that
// has sent its last.
//
// Either process gives the Lease back when it has to end, and also when it could not renew
// it, which is before its duration is over. Both go through Update, which waits.
package lease
