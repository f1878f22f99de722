// Package extender is the HTTP face of package decider: filter, prioritize, preempt and bind, for a
// kube-scheduler that cannot be replaced. It adds the protocol and nothing that decides: reading
// and writing requests, the second look, scores, samples, and victims by their UIDs.
//
// # Protocol
//
// k8s.io/kube-scheduler/extender/v1, with nodeCacheCapable: names in and names out. A question may
// have full Node objects instead. A node that the cache does not know then counts as its object
// says: an autoscaler asks about nodes that do not exist yet.
//
// # Invariants
//
//   - A pod that fits a node is bound to one within five seconds after kube-scheduler's own back-off.
//     By design, these delay it: kube-scheduler's other filters, pods of higher priority, a pod that
//     the kubelet could take for it and has not admitted yet, and a binding of its own that may have
//     been written.
//   - Filter, Prioritize and Preempt reserve nothing. A pod that they have sent to one node counts in
//     the ranking of the next pods, and no pod is refused everywhere for it. Without that, one Bind
//     in eight was refused in a burst of 2,000 pods, because kube-scheduler asks about the next
//     pod while a Bind is under way.
//   - Every request gets an answer that names the problem. Failures travel as HTTP 200 with Error,
//     because kube-scheduler drops the body of any other status. Only a malformed request is a 4xx.
//     An unreadable pod fails on every node as unresolvable, so the reason is in the pod's events.
//
// # Decisions
//
// With Alone, Filter names one node, and kube-scheduler scores nothing: the place of the pod is certain,
// and a request is spared. The pod's own preferences come first: for a pod that has some, Filter names
// all nodes.
//
// To wake a pod (Decider.Wake), the command changes an annotation of the pod, which has kube-scheduler
// try it. An error in place of a refusal would need no write, but then kube-scheduler evicts nothing
// for the pod and does not say why it waits.
//
// kube-scheduler's watch may show that a pod is gone a moment before the extender's does. A pod that
// is refused in that moment would wait for the next event. So Filter waits shortly before it
// refuses a pod everywhere (SecondLook), for a tenth of the time at most, because all other pods
// wait meanwhile.
//
// JSON goes through github.com/go-json-experiment/json, which is the encoding/json/v2 of Go 1.27 as
// a module: half of the time of a filter of 5,000 nodes went into encoding/json.
//
// kube-scheduler chooses the nodes for Preempt by sums and omits those where the sum fits, and
// Preempt cannot add any. It keeps a proposed victim that the sums of GPU memory do not explain. It
// spares one that they explain, even if the victim is also in the way of CPU: kube-scheduler
// proposes it again in its next try.
package extender
