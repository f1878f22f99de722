// Package binder binds pods. It picks the GPUs and reserves them, sends the Binding with the assignment, and
// resolves bindings whose response was lost. The extender calls it when kube-scheduler calls bind. The plugin
// of gpumem-scheduler calls it within kube-scheduler's process.
//
// # Invariants
//
//   - Bind reserves the GPUs before it sends the Binding, sends the Binding once, and holds no lock during
//     this request. After a definite refusal, Bind removes the reservation. If the outcome is unknown, the
//     reservation remains until the watch or a later read resolves it.
//   - A reservation by Reserve remains until Bind or Release. In between, other plugins of
//     kube-scheduler may delay the pod, for a volume or for the other pods of its group.
//   - When Bind picks GPUs, the cache has every binding to the node that the API server wrote before the
//     current kube-scheduler began to lead, whichever process sent it.
//   - A binding that was not sent, or that the API server refused, has a known outcome: it does not bind the
//     pod.
//   - Bind succeeds for a pod that is bound to the same node already: kube-scheduler repeats a request
//     if it did not receive the response.
//   - The callback Decided receives each decision after the fact, and cannot change it.
//
// # Decisions
//
// Once a binding is sent, Bind continues even if its caller disconnects: a canceled binding would have an
// unknown outcome without need. If the caller disconnects earlier, Bind does not send the binding.
//
// With two replicas, the replica that does not lead learns of the leader's bindings through its watch. This
// watch may be behind when a lead begins: client-go waits up to a minute before it retries an API server that
// was unavailable. So the new leader first reads the API server's resource version. Until the watch has shown
// all changes up to this version, the first Bind to each node reads the node's pods. Concurrent Binds share
// one read: on a loaded API server, hundreds of separate reads exceeded their time limits. Both alternatives
// are worse: a process that refuses all pods until the watch has caught up delays them for a minute, and a
// list of all pods is too large in a large cluster.
//
// If the binder's process itself takes part in the leader election, it knows the start of its lead, and sends
// no binding that could land after the lead (Leads, package lease). So these reads show all bindings of
// previous leaders.
//
// An extender beside each kube-scheduler does not know which kube-scheduler sends a request. At the first
// Bind after IdleThreshold without requests, it reads the Lease of kube-scheduler. If the leader is the same
// as before and has led for Handover, no other process has bound pods. One gap remains: if a kube-scheduler
// loses the lead during a Bind, its extender's binding may land after the reads of the next leader. Then the
// device plugin, which allocates no device ID twice, gives one of two pods another GPU, or rejects it.
package binder
