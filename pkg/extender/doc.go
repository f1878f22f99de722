// Package extender answers kube-scheduler: filter, prioritize, preempt and bind as
// functions of the protocol's types, and the HTTP routes that carry them.
//
// # Protocol
//
// k8s.io/kube-scheduler/extender/v1, with nodeCacheCapable: names in and names
// out. Full Node objects are answered too, from what they say themselves when
// the cache does not know them: an autoscaler asks about nodes that do not exist
// yet.
//
// Under the domain aliyun.com, the routes are gpushare's as well, with its
// inspect beside the verbs.
//
// # Invariants
//
//   - Filter, Prioritize and Preempt change nothing.
//   - Bind reserves before it writes, writes once, and no lock is held while it
//     does. After a definite refusal the reservation is gone; when the outcome
//     is not known it stays until the watch or a later read tells.
//   - Bind gives away nothing of which another extender's binding was written
//     before kube-scheduler began to ask this one.
//   - A Bind for a pod that is on that node already is a success: kube-scheduler
//     repeats one whose answer it did not get.
//   - What is decided about a pod is told to whoever listens (Decided) after the
//     answer is known, and changes none.
//   - Every request gets an answer that says what was wrong. Failures of the
//     matter travel as HTTP 200 with Error (kube-scheduler drops the body of
//     anything else); only what is no request at all is a 4xx.
//
// # Decisions
//
// An extender is slower than a plugin compiled into kube-scheduler, by an HTTP
// request for each verb (docs/scaling.md has what that costs). But it works with
// the kube-scheduler of each release and of each vendor; a plugin would be a
// kube-scheduler of our own, to be built anew for each.
//
// A binding outlives the request that asked for it: were it cut off with the
// caller's connection, its outcome would be unknown for no good reason. One that
// has not been sent when the caller hangs up is not sent.
//
// Of two replicas the one that does not lead follows the other's bindings by its
// watch, which may be behind when the lead changes: client-go waits up to a minute
// before it tries an API server again that was away. An extender does not see the
// Lease of the kube-scheduler beside it, but that it has not been asked for a while
// (Silence). At the first Bind to a node after that it reads which pods are there,
// and books those of which the watch has not told. A list for each Bind would double
// the API server's work, one of all nodes is too much for a large cluster, and to
// refuse until the watch has caught up would hold pods up for a minute. What is left
// is a binding that is written after that read, of a replica that has let go of the
// lead with a Bind under way: then the device plugin, which gives nothing twice, finds
// another GPU for one of the pods or refuses it.
//
// kube-scheduler's watch may tell of a pod that is gone a moment before the
// extender's does. A pod that is refused in that moment would wait for the next
// event, or for five minutes: one that replaces another of its size is likely to
// be. So Filter waits shortly before it refuses a pod everywhere (see SecondLook),
// but for a tenth of the time at most, for all other pods wait meanwhile. To ask the API
// server instead would cost a list of all pods of all nodes.
//
// Questions and answers go through github.com/go-json-experiment/json, which is
// Go's encoding/json/v2 as a module: half of the time that a filter of 5,000 nodes
// took went into encoding/json, which sorts the names of the nodes that it refuses
// and allocates for each. kube-scheduler writes no name twice and all in their
// case, so the stricter rules of v2 refuse nothing that it sends.
//
// What in a pod cannot be read fails every node as unresolvable, with that
// reason, so that people find it where they look: in the pod's events.
//
// Preempt replaces victims and removes nodes, and adds none: kube-scheduler
// chooses the nodes by sums, before it asks, and passes over those where the sum
// fits already. Whom it proposes for another resource than GPU memory cannot be
// told for certain. One whom the sums of GPU memory do not explain is kept as a
// victim; one whom they do, and who stands in the way of CPU as well, is spared
// here, and kube-scheduler proposes it again in its next try. In two rounds no
// more pods go than if all had been taken at once, and mostly fewer.
package extender
