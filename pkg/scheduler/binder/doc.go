// Package binder binds pods: it chooses the GPUs and reserves them, sends the Binding with
// the assignment in it, and finds out what became of one that was not answered. The extender
// does so when kube-scheduler calls its bind, and the plugin of gpumem-scheduler within
// kube-scheduler itself.
//
// # Invariants
//
//   - Bind reserves before it writes, writes once, and no lock is kept while it does. After a
//     definite refusal the reservation is gone; when the outcome is not known it is kept until
//     the watch or a later read tells.
//   - What Reserve has reserved is kept until Bind or Release: other plugins of kube-scheduler may
//     have the pod wait in between, for a volume or for others of its group.
//   - Bind gives away nothing that the binding of another has taken which was written before
//     the kube-scheduler that asks began to lead.
//   - A binding that was not sent, or that the API server has refused, is never taken for one
//     of unknown outcome.
//   - A Bind for a pod that is on that node already is a success: kube-scheduler repeats one
//     whose answer it did not get.
//   - What was decided about a pod is passed on (Decided) after the outcome is known, and changes
//     nothing.
//
// # Decisions
//
// A binding outlives the request that asked for it: were it cut off with the caller's
// connection, its outcome would be unknown for no good reason. One that has not been sent
// when the caller hangs up is not sent.
//
// Of two replicas the one that does not lead follows the other's bindings by its
// watch, which may be behind when the lead changes: client-go waits up to a minute
// before it tries an API server again that was away. So a lead begins with a read of the API
// server's resource version, and until the watch has shown all up to it, the pods of each
// node are read with the first Bind to it. Binds that come at once wait for one read: hundreds
// of their own ran into their time limits on a loaded API server. To refuse until the watch has
// caught up would delay pods for a minute, and a list of all nodes is too much for a large
// cluster.
//
// Where this process leads itself, it knows since when, and sends nothing that could land when
// another leads (Leads, package lease): so those reads show all that others have bound.
//
// An extender beside each kube-scheduler does not know who asks. At the first Bind after a Silence it reads the Lease of
// kube-scheduler, which takes a millisecond or two: the same leader as before means that no
// other has bound anything, once a Handover has passed. What is left is a binding that is
// written after these reads, of an extender whose kube-scheduler has let go of the lead with a
// Bind under way: then the device plugin, which gives nothing twice, finds another GPU for one
// of the pods or refuses it.
package binder
