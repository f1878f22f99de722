// Package binder binds pods. It picks the GPUs and reserves them, sends the Binding with the assignment, and
// resolves bindings whose response was lost. The extender calls it when kube-scheduler calls bind. The plugin
// of gpumem-scheduler calls it within kube-scheduler's process.
//
// # Invariants
//
//   - Bind reserves before it writes, writes once, and holds no lock during the write. After a
//     definite refusal, it removes the reservation. If the outcome is unknown, the reservation remains
//     until the watch or a later read resolves it.
//   - A reservation by Reserve remains until Bind or Release. In between, other plugins of
//     kube-scheduler may delay the pod, for a volume or for the other pods of its group.
//   - Bind allocates no memory that another process allocated in a binding written before the current
//     kube-scheduler began to lead.
//   - A binding that was not sent, or that the API server refused, never counts as one of unknown
//     outcome.
//   - Bind succeeds for a pod that is bound to the same node already: kube-scheduler repeats a request
//     if it did not receive the response.
//   - Decided receives each decision after its outcome is known, and cannot change it.
//
// # Decisions
//
// A binding outlives the request for it. If it were canceled with the caller's connection, its outcome would
// be unknown without need. If the caller disconnects before the binding is sent, the binder does not send it.
//
// With two replicas, the one that does not lead follows the bindings of the other by its watch. The watch may
// be behind when the leader changes: client-go waits up to a minute before it retries an API server that was
// unavailable. So a lead begins with a read of the API server's resource version. Until the watch has shown
// all changes up to this version, the first Bind to each node reads the node's pods. Concurrent Binds share
// one read: on a loaded API server, hundreds of separate reads exceeded their time limits. Both
// alternatives are worse: a process that refuses all pods until the watch has caught up delays them for a
// minute, and a list of all pods is too large in a large cluster.
//
// If this process itself takes part in the leader election, it knows since when it leads. It sends no binding
// that could land when another process leads (Leads, package lease). So these reads show all bindings of
// previous leaders.
//
// An extender beside each kube-scheduler does not know which kube-scheduler sends a request. At the first
// Bind after IdleThreshold without requests, it reads the Lease of kube-scheduler, which takes a
// millisecond or two. If the leader is the same as before, no other process has bound pods, once a Handover
// has passed. One gap remains: an extender may write a binding after these reads if its kube-scheduler gave
// up the lead during a Bind. Then the device plugin, which allocates no slot twice, gives one of the pods
// another GPU, or rejects it.
package binder
