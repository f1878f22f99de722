// Package extender serves package decider over HTTP for a kube-scheduler that cannot be replaced. It has the
// verbs filter, prioritize, preempt and bind. Package decider makes the decisions: start with the table in
// its documentation.
//
// # Protocol
//
// The protocol is k8s.io/kube-scheduler/extender/v1 with nodeCacheCapable: requests and responses contain
// node names. A request may contain full Node objects instead. For a node that the cache lacks, the object
// then determines the GPUs: an autoscaler asks about nodes that do not exist yet.
//
// # Invariants
//
//   - A pod that fits a node is bound at most five seconds after kube-scheduler's own back-off ends. By
//     design, the following delay the pod: kube-scheduler's other filters, pods of higher priority, another
//     pod that the kubelet could confuse with this one and has not admitted yet, and an earlier binding of
//     unknown outcome. A sample that lacks the node costs one more back-off.
//   - Filter, Prioritize and Preempt reserve nothing. When Filter or Prioritize has chosen one node for a
//     pod, later requests expect the pod there, but a pod is never refused on all nodes because of expected
//     pods. Without expectations, one Bind in eight was refused in a burst of 2,000 pods, because
//     kube-scheduler sends requests for the next pod while a Bind is in progress.
//   - Filter and Bind report their errors as HTTP 200 with the field Error, because kube-scheduler discards
//     the body of any other status. An example is a filter request without a pod or without nodes. The
//     responses of Prioritize and Preempt have no such field: on failure, no node has a score above 0, and no
//     pod is evicted. A body that is too large or cannot be decoded gets a 4xx status, and a panic gets 500.
//     A pod with an unreadable request for GPU memory fails on every node as unresolvable, so the reason
//     appears in the pod's events.
//
// # Decisions
//
// If Extender.Alone is set, Filter returns one node, and kube-scheduler scores nothing. So the pod's node is
// certain, and kube-scheduler sends one request less.
//
// To requeue a pod (Decider.Wake), gpumem-extender changes an annotation of the pod, and kube-scheduler then
// tries the pod again. An alternative without this write is that Filter returns an error instead of a
// refusal. But after an error, kube-scheduler evicts nothing for the pod and does not report why the pod
// waits.
//
// kube-scheduler's watch may show the deletion of a pod a moment before the extender's watch does. A pod that
// is refused in that moment would wait for the next event, or evict another pod. So Filter waits for a change
// before it refuses a pod on all nodes.
//
// The package uses github.com/go-json-experiment/json, the module form of Go 1.27's encoding/json/v2, because
// half of the time of a filter request for 5,000 nodes was spent in encoding/json.
//
// kube-scheduler selects the nodes for Preempt by sums of resources and omits nodes whose sum suffices.
// Preempt cannot add nodes. Some of the proposed victims are needed only for the node's sum of GPU memory.
// Preempt replaces these by pods of one GPU, even if they also occupy CPU that the pod needs: kube-scheduler
// proposes them again at the next attempt. Preempt keeps the other proposed victims.
package extender
